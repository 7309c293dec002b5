"""Chronos-Bolt, against a reference on transformers' T5 stacks in the public format."""

import itertools
import json

import pytest
import torch
from helpers.exhaustive import exhaustive_except
from helpers.peers import cases
from helpers.runs import train
from safetensors.torch import save_file
from torch import nn

import dxn
from dxn.cli import main
from dxn.core.errors import UserError

T = cases.T
pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
NAN = float("nan")
CONTEXT, STEPS, PATCH = 68, 7, 4
LEVELS = [0.1, 0.3, 0.5, 0.6, 0.9]
CONFIG = {
    "d_model": 20,
    "d_kv": 6,
    "d_ff": 50,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
    "vocab_size": 2,
}
SERIES = {
    "context_length": CONTEXT,
    "prediction_length": STEPS,
    "input_patch_size": PATCH,
    "input_patch_stride": PATCH,
    "quantiles": LEVELS,
    "use_reg_token": True,
}


class Residual(nn.Module):
    def __init__(self, width, hidden, out):
        super().__init__()
        self.hidden_layer = nn.Linear(width, hidden)
        self.output_layer = nn.Linear(hidden, out)
        self.residual_layer = nn.Linear(width, out)

    def forward(self, x):
        return self.output_layer(self.hidden_layer(x).relu()) + self.residual_layer(x)


class Reference(nn.Module):
    """One series at a time, in float64."""

    def __init__(self, has_end):
        super().__init__()
        stack = T.models.t5.modeling_t5.T5Stack
        config = T.T5Config(**CONFIG)
        dim, hidden = config.d_model, config.d_ff
        self.has_end = has_end
        self.shared = nn.Embedding(2 if has_end else 1, dim)
        self.input_patch_embedding = Residual(2 * PATCH, hidden, dim)
        self.encoder = stack(T.T5Config(**CONFIG, is_decoder=False, use_cache=False))
        options = {**CONFIG, "num_layers": CONFIG["num_decoder_layers"]}
        self.decoder = stack(T.T5Config(**options, is_decoder=True, use_cache=False))
        self.output_patch_embedding = Residual(dim, hidden, len(LEVELS) * STEPS)

    @torch.no_grad()
    def once(self, values):
        """Return the quantiles (Q, S) that follow values (T,)."""
        values = values[-CONTEXT:].double()
        known = values[~values.isnan()]
        mean, std = known.mean(), known.std(correction=0)
        std = std if std > 0 else torch.tensor(1e-5, dtype=torch.float64)
        front = torch.full((-len(values) % PATCH,), NAN, dtype=torch.float64)
        patches = ((torch.cat([front, values]) - mean) / std).view(-1, PATCH)
        seen = (~patches.isnan()).double()
        x = self.input_patch_embedding(torch.cat([patches.nan_to_num(), seen], 1))[None]
        mask = seen.any(1)[None].long()
        if self.has_end:
            x = torch.cat([x, self.shared.weight[None, 1:]], 1)
            mask = torch.cat([mask, torch.ones(1, 1).long()], 1)
        memory = self.encoder(inputs_embeds=x, attention_mask=mask).last_hidden_state
        state = self.decoder(
            inputs_embeds=self.shared.weight[None, :1],
            encoder_hidden_states=memory,
            encoder_attention_mask=mask,
        ).last_hidden_state[0, 0]
        return self.output_patch_embedding(state).view(len(LEVELS), STEPS) * std + mean

    def forecast(self, values, horizon):
        """Return the quantiles (Q, H)."""
        levels = torch.tensor(LEVELS).double()
        parts = [self.once(values)]
        ways = [values.double()] * len(LEVELS)
        while len(parts) * STEPS < horizon:
            last = parts[-1]
            ways = [torch.cat([way, new])[-CONTEXT:] for way, new in zip(ways, last, strict=True)]
            parts.append(torch.cat([self.once(way) for way in ways]).quantile(levels, dim=0))
        return torch.cat(parts, 1)[:, :horizon]


def save(folder, *, has_end=True, series=(), **config):
    """Save a model with random weights in the public format, and return the reference."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    peer = Reference(has_end)
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            width = weight.shape[-1]
            weight.copy_(torch.randn_like(weight) * (1 if "norm" in name else width**-0.5))
            if name.endswith("relative_attention_bias.weight"):
                weight.normal_()
    state = {n: t for n, t in peer.state_dict().items() if "embed_tokens" not in n}
    save_file({n: t.contiguous() for n, t in state.items()}, folder / "model.safetensors")
    options = {
        **CONFIG,
        "model_type": "t5",
        "architectures": ["ChronosBoltModelForForecasting"],
        "feed_forward_proj": "relu",
        "chronos_config": {**SERIES, "use_reg_token": has_end, **dict(series)},
        **config,
    }
    (folder / "config.json").write_text(json.dumps(options))
    return peer.double().eval()


def walk(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, generator=generator).cumsum(0) + 5


def with_gaps():
    """Values are missing in a whole patch, in a part of one, and at the end."""
    values = walk(53, 7)
    values[9:22] = values[30] = values[-6:] = NAN
    return values


SAMPLES = {
    "one value": walk(1),
    "shorter than a patch": walk(3),
    "short": walk(17),
    "whole patches": walk(24),
    "as long as the context": walk(CONTEXT),
    "longer than the context": walk(101),
    "missing values": with_gaps(),
    "constant": torch.full((19,), 4.0),
    "small": 1e-20 * walk(20),
    "large": 1e10 * walk(20),
}


@pytest.mark.parametrize(
    ("horizon", "has_end"),
    exhaustive_except(
        itertools.product([None, 3, 23], [True, False]), (None, True), (3, False), (23, True)
    ),
)
def test_the_quantiles_are_those_of_the_reference(horizon, has_end, tmp_path):
    peer = save(tmp_path, has_end=has_end)
    head = {} if horizon is None else {"horizon": horizon}
    model = dxn.from_public(str(tmp_path), dtype="float32", head=head)
    samples = [{"series": values} for values in SAMPLES.values()]
    together = model.predict(samples)
    for sample, answer in zip(samples, together, strict=True):
        values = sample["series"]
        expected = peer.forecast(values, horizon or STEPS)
        known = values[~values.isnan()].double()
        unit = max(float(known.std(correction=0)), 1e-5 * float(known.abs().max()))
        for got in (answer, model.predict(**sample)):
            assert got["prediction"] == got["quantiles"]["0.5"]
            quantiles = torch.tensor(list(got["quantiles"].values())).double()
            # Answers have six digits.
            rounding = 5e-6 * expected.abs().max() / unit
            difference = (quantiles - expected).abs().max() / unit
            assert difference < 1e-4 + rounding
    assert together[2]["quantiles"] != together[5]["quantiles"]


def test_each_channel_is_a_series_of_its_own(tmp_path):
    save(tmp_path)
    model = dxn.from_public(str(tmp_path), dtype="float32", head={"horizon": 10})
    channels = [walk(30), 100 * walk(30, 1), with_gaps()[:30]]
    together = model.predict(series=torch.stack(channels, 1))["quantiles"]
    model = dxn.from_public(str(tmp_path), dtype="float32", head={"horizon": 10})
    for k, values in enumerate(channels):
        alone = model.predict(series=values)["quantiles"]
        for level, expected in alone.items():
            assert [row[k] for row in together[level]] == pytest.approx(expected, rel=1e-4)


def test_other_models_of_the_same_name_are_refused_with_a_sentence(tmp_path):
    for name in ("T5ForConditionalGeneration", "Chronos2Model"):
        save(tmp_path, architectures=[name])
        with pytest.raises(UserError, match=f"does not support the Chronos model {name}"):
            dxn.from_public(str(tmp_path))
    save(tmp_path, series={"input_patch_stride": 2})
    with pytest.raises(UserError, match="overlapping patches: input_patch_stride must be 4"):
        dxn.from_public(str(tmp_path))
    save(tmp_path, series={"context_length": 70})
    with pytest.raises(UserError, match="context_length that is no multiple of 4"):
        dxn.from_public(str(tmp_path))
    save(tmp_path, feed_forward_proj="gated-gelu")
    with pytest.raises(UserError, match="activation function 'gated-gelu'"):
        dxn.from_public(str(tmp_path))


# The command line


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "visits.csv"
    waves = [100 + 20 * (i % 5) + i / 10 for i in range(150)]
    rows = [f"{i},{wave:.1f},{wave / 7:.2f}" for i, wave in enumerate(waves)]
    path.write_text("\n".join(["hour,visits,sales", *rows]))
    return path


OPTIONS = ["trainer.precision=float32", "trainer.device=cpu", "batch_size=16"]
OPTIONS += ["data=timeline", "head=forecast"]


def test_a_training_starts_from_all_weights(table, tmp_path):
    save(tmp_path / "public")
    options = [*OPTIONS, f"data.path={table}", "data.target=[visits,sales]", "data.horizon=10"]
    still = ["trainer.epochs=1", "optimizer.lr=1e-30", "optimizer.weight_decay=0"]
    public = f"weights={tmp_path / 'public'}"
    train(tmp_path / "run", *options, *still, public, f"data.context={CONTEXT}")
    answers = tmp_path / "answers.csv"
    assert main(["predict", f"run={tmp_path / 'run'}", f"input={table}", f"output={answers}"]) == 0
    lines = [line.split(",") for line in answers.read_text().splitlines()]
    assert len(lines) == 11 and lines[0][4:6] == ["prediction_visits", "q0.1_visits"]
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    model = dxn.from_public(str(tmp_path / "public"), dtype="float32", head={"horizon": 10})
    expected = model.predict(series=[float(row[1]) for row in rows])["prediction"]
    assert [float(line[4]) for line in lines[1:]] == pytest.approx(expected, rel=1e-4)


def test_a_table_of_time_steps_is_forecast_without_training(table, tmp_path, capsys):
    save(tmp_path / "public")
    answers = tmp_path / "answers.csv"
    command = ["predict", f"weights={tmp_path / 'public'}", f"input={table}", f"output={answers}"]
    assert main([*command, "target=visits", "head.horizon=9"]) == 0
    lines = [line.split(",") for line in answers.read_text().splitlines()]
    assert lines[0] == ["file", "row", "hour", "step", "prediction", "q0.1", "q0.3", "q0.6", "q0.9"]
    assert [line[2] for line in lines[1:]] == [str(150 + i) for i in range(9)]
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    model = dxn.from_public(str(tmp_path / "public"), dtype="float32", head={"horizon": 9})
    expected = model.predict(series=[float(row[1]) for row in rows])["prediction"]
    assert [float(line[4]) for line in lines[1:]] == pytest.approx(expected, rel=1e-4)
    capsys.readouterr()
    assert main([*command, "data.target=visits", "data.context=3"]) == 2
    assert "data.context: no such option" in capsys.readouterr().err


def test_fine_tuning_lowers_the_loss(table, tmp_path):
    save(tmp_path / "public")
    options = [*OPTIONS, f"data.path={table}", "data.target=visits", "data.covariates=[]"]
    train(
        tmp_path / "run",
        *options,
        "trainer.epochs=4",
        "optimizer.lr=2e-3",
        f"weights={tmp_path / 'public'}",
    )
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(row)["validation/loss"] for row in rows if "validation/loss" in row]
    assert losses[-1] < 0.85 * losses[0]
