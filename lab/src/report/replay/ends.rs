//! How recorded runs ended.

use crate::files::run_records::{Phase, RunEnd, RunRecord};
use memwarden::model::ends::{EndCause, ExitStatus};
use memwarden::model::format;
use memwarden::model::health::Health;
use memwarden::model::printable::escaped;
use memwarden::model::units::real;
use memwarden::node_view::table::{Cell, Row};
use memwarden::report::Page;
use memwarden::report::text;

/// The file, what it is, how its runs ended, and what was left out; nothing for a file that only has series.
pub(crate) fn write(out: &mut String, file: &str, record: &RunRecord, page: Page) {
    if record.ends.is_empty() && record.remarks.is_empty() {
        return;
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out.push_str(&format!("{} ({})\n", escaped(file), record.tool));
    let row = |what: &str, cell: Cell| Row::default().text("", 0, what).prose("", cell);
    let ends =
        record.ends.iter().map(|end| row("end", Cell::text(sentence(end)).of(Health::from(end.cause))));
    let remarks = record.remarks.iter().map(|remark| row("remark", escaped(remark).into_owned().into()));
    let rows: Vec<Row> = ends.chain(remarks).collect();
    text::rows(out, rows, page);
}

pub(crate) fn report(file: &str, end: RunEnd) -> serde_json::Value {
    serde_json::json!({ "file": file, "end": end })
}

/// The run, how it ended, where, and with what.
fn sentence(end: &RunEnd) -> String {
    let mut text = if end.run.is_empty() { String::new() } else { format!("{}: ", escaped(&end.run)) };
    text.push_str(match end.cause {
        EndCause::GpuMemory => "out of GPU memory",
        EndCause::GpuNeighbor => "out of GPU memory, of which other processes held a tenth or more",
        EndCause::GpuFragmentation => {
            "out of GPU memory, because the free memory that the allocator held was in blocks that were too small"
        }
        EndCause::CgroupLimit => "out of memory: the limit of its cgroup was reached",
        EndCause::ProcessLimit => "an allocation on the host was refused",
        EndCause::HostMemory => "out of memory of the host",
        EndCause::SharedMemory => "out of shared memory (/dev/shm)",
        EndCause::Finished => "finished",
        EndCause::Killed => "ended from outside",
        EndCause::Failed => "failed",
        _ => "the end is not recorded",
    });
    match (end.step, end.steps_planned) {
        (Some(step), Some(planned)) => {
            text.push_str(&format!(
                " at step {} of {}",
                format::whole(real(step)),
                format::whole(real(planned))
            ));
        }
        (Some(step), None) => text.push_str(&format!(" at step {}", format::whole(real(step)))),
        _ => {}
    }
    text.push_str(match end.phase {
        Some(Phase::Forward) => ", in the forward pass",
        Some(Phase::Backward) => ", in the backward pass",
        Some(Phase::Optimizer) => ", in the optimizer",
        Some(Phase::Evaluation) => ", in an evaluation",
        Some(Phase::Save) => ", while it saved",
        None => "",
    });
    if let Some(allocation) = &end.allocation {
        let amounts =
            [(allocation.requested, "requested"), (allocation.free, "free"), (allocation.total, "in all")];
        let known =
            amounts.iter().filter_map(|(amount, what)| Some(format!("{} {what}", format::bytes((*amount)?))));
        let gpu = end.gpu.map(|gpu| format!("GPU {gpu}"));
        let words: Vec<String> = gpu.into_iter().chain(known).collect();
        if !words.is_empty() {
            text.push_str(&format!(" ({})", words.join(", ")));
        }
    }
    if let Some(used) = end.used_bytes {
        text.push_str(&format!("; used up to {}", format::bytes(real(used))));
        if let Some(limit) = end.limit_bytes {
            text.push_str(&format!(" of {}", format::bytes(real(limit))));
        }
    }
    if let Some(code) = end.exit_code.filter(|code| *code != 0) {
        text.push_str(&format!("; exit code {code}"));
        let signal = ExitStatus::Code(code).signal().and_then(|signal| u64::try_from(signal).ok());
        if let Some(signal) = signal {
            text.push_str(&format!(" ({})", format::signal(signal)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::files::run_records::Format;

    #[test]
    fn ends_are_sentences() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/runs");
        let mut text = String::new();
        for name in ["backward.wandb", "sacct.txt"] {
            let bytes = std::fs::read(folder.join(name)).unwrap();
            let mut record = Format::of(&bytes).unwrap().read(&*bytes).unwrap();
            // The client chooses it.
            record
                .ends
                .iter_mut()
                .filter(|end| end.run.starts_with("tiny"))
                .for_each(|end| end.run = "tiny".into());
            write(&mut text, name, &record, Page::default());
        }
        expect![[r#"
            backward.wandb (W&B)
              end  tiny: out of GPU memory at step 8 of 10, in the backward pass (GPU 0, 2.0 GiB requested, 1.0 GiB free, 79.1 GiB in all); exit code 1

            sacct.txt (sacct)
              end  job 4711 (train): out of memory: the limit of its cgroup was reached; used up to 64.0 GiB of 64.0 GiB
              end  job 4712 (eval): finished; used up to 9.5 GiB of 16.0 GiB
              end  job 4713 (tune): ended from outside
              end  job 4714 (save): failed; exit code 1
        "#]].assert_eq(&text);
    }

    #[test]
    fn a_file_of_series_only_has_no_lines() {
        let mut text = String::new();
        write(&mut text, "x.csv", &RunRecord::default(), Page::default());
        assert_eq!(text, "");
    }
}
