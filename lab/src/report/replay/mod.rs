//! The results of the analyzers on a recorded series, as text, JSON, CSV and chart.

pub(crate) mod ends;
pub(crate) mod picture;
pub(crate) mod text;

use std::io::Write;

use forecast::LeakState;

use memwarden::analyzers::replay::ReplayedAssessment;
use memwarden::model::series::Series;

/// The version of the JSON.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// The assessments as CSV; what is not known is empty.
pub(crate) fn rows(out: &mut impl Write, replayed: &[ReplayedAssessment]) -> csv::Result<()> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(["t_s", "leak", "tte_p10", "tte_p50", "tte_p90", "p_exhaustion"])?;
    let seconds = |time: Option<f64>| time.map_or_else(String::new, |time| format!("{time:.3}"));
    for ReplayedAssessment { at, assessment, .. } in replayed {
        let tte = assessment.tte;
        let chance = assessment.p_exhaustion.first().copied().flatten();
        table.write_record([
            at.to_string(),
            u8::from(assessment.leak == LeakState::Leaking).to_string(),
            seconds(tte.map(|tte| tte.p10)),
            seconds(tte.map(|tte| tte.p50)),
            seconds(tte.and_then(|tte| tte.p90)),
            chance.map_or_else(String::new, |chance| format!("{chance:.6}")),
        ])?;
    }
    Ok(table.flush()?)
}

/// The last assessment of a series and the changes before it.
pub(crate) fn report(series: &Series, replayed: &[ReplayedAssessment], horizon: f64) -> serde_json::Value {
    let changes: Vec<_> = text::changes(replayed)
        .map(|(at, state)| serde_json::json!({ "t_s": at, "leak": state.label() }))
        .collect();
    let last = replayed.last();
    serde_json::json!({
        "name": series.name,
        "samples": series.rows.len(),
        "remarks": series.remarks,
        "t_s": last.map(|last| last.at),
        "limit_bytes": last.and_then(|last| last.limit),
        "horizon_seconds": horizon,
        "changes": changes,
        "assessment": last.map(|last| &last.assessment),
    })
}
