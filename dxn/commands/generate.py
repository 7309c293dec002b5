"""The command `dxn generate`."""

from __future__ import annotations

from dxn.core.errors import UserError
from dxn.models import make_sampler
from dxn.runs.evaluation.printing import print_line, print_rule
from dxn.runs.predictor.output import check_suffix
from dxn.runs.predictor.prompts import read_prompts, write_texts
from dxn.runs.predictor.samples import read_sample
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Generate text: continue a prompt, or generate a text for an input."""
    values = settings.values
    # Before the model is loaded, so that a mistake is reported at once.
    output = check_suffix(values["output"])
    prompts = read_prompts(values)
    predictor = load_predictor(settings)
    try:
        sampler = make_sampler(
            values["temperature"],
            top_k=values["top_k"],
            top_p=values["top_p"],
            seed=values["seed"],
            device=predictor.device,
        )
    except ValueError as error:
        raise UserError(str(error)) from error  # the message names the option
    inputs = values["input"]
    texts = predictor.write(
        prompt=prompts,
        inputs=None
        if inputs is None
        else read_sample(inputs, predictor.readers, predictor.columns),
        count=values["count"],
        max_new=values["max_new"],
        sampler=sampler,
        batch_size=values["batch_size"],
    )
    if output is not None:
        write_texts(output, prompts, texts)
        return 0
    for i, text in enumerate(texts):
        if i:
            print_rule()
        print_line(text)
    return 0
