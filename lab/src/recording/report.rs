//! Series from a JSON report of memwarden.

use memwarden::model::series::Series;
use memwarden::plot::report;

/// Every series of a report that counts bytes, with its limit.
///
/// # Errors
/// The error in the JSON, with line and column.
pub fn read(json: &[u8]) -> Result<Vec<Series>, serde_json::Error> {
    let report = report::read(json)?;
    let of_bytes = report.series.into_iter().filter(|series| series.unit == "bytes");
    let series = |found: report::Series| {
        let limit = found.limit_bytes.filter(|limit| limit.is_finite() && *limit > 0.0);
        // `GPU 0` in the reports of `profile`, and `gpu 0 used` in those of `oom` and `leak`.
        let gpu = found.name.get(..4).is_some_and(|front| front.eq_ignore_ascii_case("gpu "));
        Series { gpu, ..Series::of_points(found.name, limit, found.points) }
    };
    Ok(of_bytes.map(series).collect())
}
