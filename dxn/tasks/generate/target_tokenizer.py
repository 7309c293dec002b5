"""The tokenizer of target texts, which a model generates."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from tokenizers import Tokenizer
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import TARGET_TOKENIZER
from dxn.core.randomness import Probability
from dxn.core.schema import checked, options
from dxn.models.decoding.rules import Rules
from dxn.tokenize.text.options import TextAugment, TokenizerOptions
from dxn.tokenize.text.tokenizer import TextTokenizer
from dxn.tokenize.text.vocabulary import BEGINS, ENDS, load_tokenizer, num_embeddings, token_of

LANGUAGE = "([a-z]{2,3}(?:_[A-Za-z]+)?)"  # code of a language, such as de, haw and de_DE


@options
class MarkOptions:
    """Options of the tokens before and after a generated text.

    Args:
        begin: Tokens, or their ids, before each text, such as the code of its language. Default:
            the begin token of the tokenizer, such as [BOS] or <s>.
        end: Tokens, or their ids, each of which ends a text. The first one is added to target
            texts. Default: the end token of the tokenizer, such as [EOS] or </s>.
        task: What a public model of several tasks does, such as transcribe or translate. It
            replaces {task} in a token of `begin`.
    """

    begin: Sequence[int | str] = ()
    end: Sequence[int | str] = ()
    task: str = ""


class TargetTokenizer:
    """Adds begin and end tokens to the token ids of target texts, and has the rules of generation.

    The arguments are the options of `Generate` with these names.

    Attributes:
        text_tokenizer: Converts texts to token ids without marks, and back.
        begin_ids: Ids of the tokens before each text.
        end_ids: Ids of the tokens that end a text.
        rules: The rules, with the ids of their tokens.
        language_choice: Index in begin_ids of the language that the model chooses, and the ids of
            which it chooses one. None: the language is known, or there is none.
    """

    @checked
    def __init__(
        self,
        *,
        vocab_size: Annotated[int, Ge(1)] = 8000,
        tokenizer: TokenizerOptions = TokenizerOptions(),
        max_len: Annotated[int, Ge(2)] = 128,
        subword_dropout: Probability = 0.0,
        marks: MarkOptions = MarkOptions(),
        rules: Rules = Rules(),
        language: str = "",
    ):
        if tokenizer.special_tokens:
            raise ValueError(
                "tokenizer.special_tokens=true is not supported for target texts, to which the "
                "begin and end tokens are always added: leave it out"
            )
        if tokenizer.pad_to or tokenizer.marker is not None or tokenizer.prompt:
            raise ValueError(
                "tokenizer.pad_to, tokenizer.marker and tokenizer.prompt have no effect on target "
                "texts: leave them out"
            )
        self.text_tokenizer = TextTokenizer(
            tokenizer,
            vocab_size=vocab_size,
            max_len=max_len,
            augment=TextAugment(subword_dropout=subword_dropout),
        )
        self.max_len = max_len
        self.marks = marks
        self.rule_options = rules
        self.values = {"language": language, "marks.task": marks.task}
        for name, value in self.values.items():
            if value and not any(_field(name) in str(token) for token in marks.begin):
                raise ValueError(
                    f"{name}: no token before a text depends on it, got {value}; leave it out, or "
                    f"set marks.begin with a token that contains {_field(name)}"
                )
        self.language_choice: tuple[int, list[int]] | None = None
        if self.text_tokenizer.is_fitted:
            self._find_marks()

    def use_vocabulary(self, vocabulary: Tokenizer) -> None:
        """Use this vocabulary instead of training one.

        Raises:
            UserError: If it has no begin token or no end token, or lacks a token of an option.
        """
        self.text_tokenizer.use_vocabulary(vocabulary)
        self._find_marks()

    def _find_marks(self) -> None:
        """Find the ids of the begin and end tokens, and of those of the rules."""
        tokenizer = self.text_tokenizer.vocabulary
        self.language_choice = None
        marks, rules = self.marks, self.rule_options
        self.begin_ids = self._ids_of("marks.begin", marks.begin, tokenizer) or [
            _named("begin", BEGINS, tokenizer)
        ]
        self.end_ids = self._ids_of("marks.end", marks.end, tokenizer) or [
            _named("end", ENDS, tokenizer)
        ]
        first = self._ids_of("rules.forbidden_first", rules.forbidden_first, tokenizer)
        self.rules = replace(
            rules,
            forbidden=self._ids_of("rules.forbidden", rules.forbidden, tokenizer),
            forbidden_first=first,
        )

    def fit(self, texts: Iterable[str]) -> None:
        """Train the vocabulary on texts of the training split, unless it is loaded already."""
        if not self.text_tokenizer.is_fitted:
            self.text_tokenizer.fit(texts, keeps_rare=True)
            self._find_marks()
        self.check_language()

    def encode(self, text: str, rand: random.Random | None = None) -> Tensor:
        """Return the token ids of a text between the begin and end tokens.

        Args:
            text: Text with n tokens.
            rand: Random generator of subword_dropout. None: no subword_dropout.

        Returns:
            (n + 2,), or more if several tokens are before each text. A truncated text has no end
            token, and max_len ids after the first one.
        """
        if not self.text_tokenizer.is_fitted:
            raise ValueError(
                "the target tokenizer is not trained yet: call fit(texts) or set tokenizer.path"
            )
        self.check_language()
        ids = self.text_tokenizer.ids(text, rand)
        ids = [*self.begin_ids, *ids, self.end_ids[0]]
        # The begin token is never predicted, so it does not count towards max_len.
        return torch.tensor(ids[: self.max_len + 1], dtype=torch.long)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self.text_tokenizer.decode(ids)

    def save(self, folder: Path) -> None:
        """Save the vocabulary to target_tokenizer.json in folder."""
        self.text_tokenizer.vocabulary.save(str(folder / TARGET_TOKENIZER))

    def load(self, folder: Path) -> TargetTokenizer:
        """Load the vocabulary that `save` wrote to folder."""
        self.use_vocabulary(load_tokenizer(folder / TARGET_TOKENIZER))
        return self

    def _ids_of(self, option: str, tokens: Sequence[int | str], tokenizer: Tokenizer) -> list[int]:
        """Return the ids of the tokens of an option."""
        size = num_embeddings(tokenizer)
        ids: list[int] = []
        for token in tokens:
            chooses = option == "marks.begin" and not self.values["language"]
            if chooses and "{language}" in str(token):
                languages = sorted(_languages(str(token), tokenizer).values())
                self.language_choice = len(ids), languages
                ids.append(languages[0])  # it is replaced by the one that the model chooses
                continue
            i = token
            if not isinstance(i, int):
                i = tokenizer.token_to_id(_filled(i, self.values))
            if i is None and token != _filled(str(token), self.values):
                raise self._unknown(str(token), tokenizer)
            if isinstance(i, int) and i >= size and option.startswith("rules."):
                continue  # a row of a public checkpoint that the tokenizer does not know
            if i is None or not 0 <= i < size:
                raise UserError(
                    f"head.{option}: the tokenizer has no token {token!r}: use one of its "
                    f"{size:,} tokens"
                )
            ids.append(i)
        return ids

    def check_language(self) -> None:
        """Check that the language does not depend on the sample.

        Raises:
            UserError: If it does.
        """
        if self.language_choice is not None:
            raise UserError(
                "head.language: the language of the texts is unknown: set it, such as "
                "head.language=en"
            )

    def _unknown(self, token: str, tokenizer: Tokenizer) -> UserError:
        """Return the error for a token of marks.begin whose language or task is unknown."""
        name = next(name for name in self.values if _field(name) in token)
        value = self.values[name]
        names = list(_languages(token, tokenizer)) if name == "language" else []
        advice = f"use one of {', '.join(sorted(names))}" if names else "use another one"
        return UserError(
            f"head.{name}: the tokenizer has no token {_filled(token, self.values)!r}, got "
            f"{value!r}: {advice}"
        )


def _named(kind: str, names: Sequence[str], tokenizer: Tokenizer) -> int:
    """Return the id of the first of these tokens that the tokenizer has."""
    token = token_of(tokenizer, names)
    if token is None:
        raise UserError(
            f"head.tokenizer: the tokenizer has no {kind} token ({', '.join(names)}): set "
            f"head.marks.{kind}, choose another tokenizer, or train one"
        )
    return token


def _filled(token: str, values: Mapping[str, str]) -> str:
    """Return a token of marks.begin with its language and its task."""
    for name, value in values.items():
        token = token.replace(_field(name), value)
    return token


def _field(name: str) -> str:
    """Return what the value of an option replaces: {task} for marks.task."""
    return f"{{{name.rpartition('.')[2]}}}"


def _languages(token: str, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens that a token with {language} can become.

    Raises:
        UserError: If there are none.
    """
    pattern = re.compile(re.escape(token).replace(re.escape("{language}"), LANGUAGE))
    added = tokenizer.get_added_tokens_decoder()
    matches = ((pattern.fullmatch(token_of_id.content), i) for i, token_of_id in added.items())
    languages = {match[1]: i for match, i in matches if match is not None}
    if not languages:
        raise UserError(
            f"head.marks.begin: the tokenizer has no token of a language, such as {token!r}: use "
            "another tokenizer"
        )
    return languages
