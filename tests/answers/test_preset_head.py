"""A training uses the options of its head that the preset has chosen and printed."""

from helpers.data import write_table
from helpers.runs import SMALL, same_tensors, train, weights_of


def test_the_head_is_trained_with_the_dropout_of_the_preset(tmp_path, capsys):
    rows = [
        {
            "text": f"{'good' if i % 2 else 'bad'} {i} a b",
            "more": f"see {i} c d",
            "label": "xy"[i % 2],
        }
        for i in range(60)
    ]
    table = str(write_table(tmp_path / "t.csv", rows))
    options = [*SMALL, "trainer.epochs=1", "report=false", "baseline=none", "adapters=[text]"]
    train(tmp_path / "preset", table, "target=label", *options)
    assert "head.dropout=0.0" in capsys.readouterr().out
    train(tmp_path / "named", table, "target=label", *options, "head.dropout=0.0")
    assert same_tensors(weights_of(tmp_path / "preset"), weights_of(tmp_path / "named"))
