"""The comparison with published measurements, on rows whose memory is known."""

import importlib.machinery
import importlib.util
import json

from conftest import CLIENT

loader = importlib.machinery.SourceFileLoader("fit_published", str(CLIENT / "fit_published"))
published = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(published)


def row(samples, length, per_token, reserved=1.25, **measured):
    peak = 1000.0 + per_token * samples * length
    known = {"resident_before_step_mib": 900.0, "optimizer_state_mib": 100.0, "peak_forward_mib": (1000.0 + peak) / 2}
    known.update(peak_backward_mib=peak, peak_allocated_mib=peak, peak_reserved_mib=reserved * peak, cuda_context_mib=100.0)
    run = {"kernel": "flash", "quantization": "none", "lora_rank": 8, "batch_size": samples, "seq_len": length}
    known["process_mib"] = reserved * peak + 100.0
    return {"model_id": "m", "run": run, "measured": dict(known, **measured), "predicted": {"total_mib": 2 * known["process_mib"]}}


def test_a_larger_size_is_predicted_from_the_first_one(tmp_path, capsys):
    rows = [row(1, 64, 2.0), row(4, 64, 2.0), row(2, 128, 2.5), row(4, 64, 2.0, reserved=1.5)]
    del rows[3]["measured"]["resident_before_step_mib"]
    (tmp_path / "a.json").write_text(json.dumps({"runs": rows}))
    (tmp_path / "manifest.json").write_text("{}")
    published.main(tmp_path)
    said = capsys.readouterr().out
    assert "4 rows, 3 of them" in said
    # The published figure is twice the truth.
    assert "| all | 4 | 100.0 | +100.0 |" in said and "| holdout | 0 | – | – |" in said
    # 64 tokens to 256 of the same length exactly, and to 256 of another length 2.0 instead of 2.5 MiB a token.
    assert "| flash | samples | one step | 1 | 0.0 | +0.0 | 1 | 0.0 | +0.0 | 100.0 | +100.0 |" in said
    assert "| flash | length | one step | 1 | 7.8 | -7.8 | 1 | 7.4 | -7.4 | 100.0 | +100.0 |" in said
    # Both rows of one size: the same allocated, 5/6 of the process or 6/5 of it.
    assert "| 2 | 0.0 | +0.0 | 17." in said


def test_a_run_near_the_limit_is_predicted_from_the_holdout(tmp_path, capsys):
    (tmp_path / "final.json").write_text(json.dumps({"runs": [row(1, 64, 2.0)]}))
    (tmp_path / "validation").mkdir()
    identity = dict(row(8, 64, 0.0)["run"], model_id="of/m")
    results = [{"identity": identity, "predicted_total_mib": 1.0, "measured_process_mib": None}]
    (tmp_path / "validation/final-t4-20260921-verdicts.json").write_text(json.dumps({"results": results}))
    (tmp_path / "final.json").write_text((tmp_path / "final.json").read_text().replace('"model_id": "m"', '"model_id": "of/m"'))
    published.main(tmp_path)
    assert "| m | 8 | 2024 | 2630 | 1 | out of memory |" in capsys.readouterr().out
