"""The commands. This module imports nothing, so that `dxn --help` is fast."""

VERBS = {
    "train": "Train a model on text, images, audio or any mix of them, and evaluate it",
    "evaluate": "Compute the metrics of a trained model, with all inputs and with subsets of them",
    "predict": "Predict for one sample or a table with a trained model",
    "generate": "Generate text with a trained model: continue a prompt, or describe an input",
    "embed": "Compute one embedding per sample with a trained model or a public checkpoint",
    "index": "Embed the rows of a table or data set, and write an index for dxn search",
    "search": "Find the rows of an index that are most similar to a query, such as a text",
    "attend": "Draw the attention of a model for one sample",
    "neighbors": "List the tokens with the embeddings most similar to the embedding of one token",
    "tokenize": "Convert one sample to its D×N matrix and draw it",
    "check": "Read a whole data set and report its contents and errors",
    "report": "Write report.html again: data, curves, figures with intervals, examples, attention",
    "compare": "Put runs side by side: options that differ, figures with intervals, a paired test",
    "serve": "Answer requests over HTTP with a trained model, and show a page to try it",
    "export": "Export a trained model to ONNX or torch.export, which run without dxn",
    "push": "Upload a trained model with a model card to the Hugging Face hub",
    "verify": "Check the files of a run: checksums, whether they load, whether figures are finite",
    "doctor": "Print versions, devices and formats of this computer, and what is fast on it",
    "show": "Print the complete configuration of a training run",
}


def overview() -> str:
    """Return the page of `dxn --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  dxn {name:<{width}}  {text}" for name, text in VERBS.items())
    return (
        "dxn converts text, images and audio to D×N token matrices, and trains one transformer "
        f"on them.\n\n{verbs}\n\n"
        "dxn VERB --help lists the keys of a command, and dxn help KEY describes one key. A path "
        "needs no\nkey. All other options are written key=value, and dxn show prints their values."
    )
