"""The command `dxn generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from dxn.commands.model import Compute, FromWeights, TableInput
from dxn.commands.options import OUTPUT_FILE, Count, Input, Seed
from dxn.config.words import AS_TYPED


@dataclass(frozen=True, kw_only=True)
class Generate(FromWeights, TableInput, Compute):
    """Generate text with a trained model: continue or answer a prompt, or describe an input.

    Args:
        prompt: Text to continue, for a language model, or message to answer.
        prompts: File with many prompts: a .txt file with one per line, or a table with a column
            prompt.
        system: Message of the system before the prompt, for a model of conversations.
        chat: Whether the prompt is a message of the user, and only the answer is the text (default:
            if the model has a chat template).
        input: Inputs to generate a text for: input.text=... input.image=... input.audio=..., or a
            table, a folder or a pattern ('photos/*.jpg'), each of whose rows gets a text.
        create: Input that a model of head=any creates (default: the only one that is not given).
        max_new: Maximum number of tokens to generate.
        temperature: Divisor of the logits; 0 always chooses the most probable token.
        top_k: Sample from this number of most probable tokens (default: all).
        top_p: Sample from the most probable tokens with this total probability (arXiv:1904.09751).
        guidance: Scale of the classifier-free guidance of a model of head=any: larger values follow
            the inputs more closely, with less variety (arXiv:2207.12598); 1: no guidance.
            Default: 2 if the model was trained for it, and 1 for texts.
        count: Number of texts to generate, per prompt.
        output: .csv, .jsonl, .json or .parquet file for the texts (default: print them). With
            head=any: file for the picture, sound, series or clip, or a folder for many of them.
        seed: Random seed of sampling.
        batch_size: Number of texts per batch.
    """

    usage: ClassVar[Sequence[str]] = (
        'dxn generate run=RUN prompt="ROMEO:" temperature=0.8',
        'dxn generate weights=openai-community/gpt2 prompt="Once upon a time" top_p=0.9',
        'dxn generate run=RUN prompt="Which is larger, 17 or 52?" system="Answer briefly."',
        "dxn generate run=RUN prompts=prompts.txt output=texts.csv",
        "dxn generate run=RUN input.image=photo.jpg temperature=0",
        'dxn generate run=RUN input=photos/ prompt="Describe the picture." output=texts.csv',
        'dxn generate run=RUN input.text="a seven" output=seven.png',
    )

    prompt: Annotated[str, AS_TYPED] = ""
    prompts: str | None = None
    system: Annotated[str, AS_TYPED] = ""
    chat: bool | None = None
    input: Input | None = None
    create: str | None = None
    max_new: Count = 200
    temperature: Annotated[float, Ge(0)] = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    guidance: Annotated[float, Ge(0)] | None = None
    count: Count = 1
    output: Annotated[str | None, OUTPUT_FILE] = None
    seed: Seed = 0
    batch_size: Count = 16

    def execute(self) -> int:
        """Continue or answer a prompt, or generate a text for an input."""
        from dxn.core.display import print_line, print_rule
        from dxn.core.errors import UserError
        from dxn.runs.predictor.option import has_many_samples, read_sample
        from dxn.runs.predictor.output import check_suffix
        from dxn.runs.predictor.prompts import read_prompts, read_rows, write_texts

        predictor = None
        if self.run is not None:
            predictor = self.load(**self.computing())
            if predictor.task.creates:
                from dxn.runs.predictor.creating import create_files

                create_files(predictor, self)
                return 0
        guidance = None if self.guidance is None else f"{self.guidance:g}"
        for name, value in {"create": self.create, "guidance": guidance}.items():
            if value is not None:
                raise UserError(
                    f"{name}: needs a model of head=any, got {name}={value}; leave it out"
                )
        # Before a public model is loaded, so that a mistake is reported at once.
        output = check_suffix(self.output)
        prompts = read_prompts(self.prompt, self.prompts)
        predictor = predictor or self.load(**self.computing())
        inputs, rows = None, []
        if self.input is not None and has_many_samples(self.input):
            without = predictor.task.target.last
            inputs, rows = read_rows(predictor, self.input, without, **self.table_options())
        elif self.input is not None:
            inputs = read_sample(self.input, predictor.model_inputs.readers, predictor.columns)
        texts = predictor.write(
            prompt=prompts,
            system=self.system,
            chat=self.chat,
            inputs=inputs,
            count=self.count,
            max_new=self.max_new,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            batch_size=self.batch_size,
        )
        if output is not None:
            write_texts(output, prompts, texts, rows)
            return 0
        for i, text in enumerate(texts):
            if i:
                print_rule()
            print_line(text)
        return 0
