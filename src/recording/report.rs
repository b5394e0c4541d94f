//! Series from a JSON report of memwarden.

use super::ascending;
use crate::model::series::Series;
use crate::plot::report;

/// Every series of a report that counts bytes, with its limit.
///
/// # Errors
/// The error in the JSON, with line and column.
pub fn read(json: &[u8]) -> Result<Vec<Series>, serde_json::Error> {
    let report = report::read(json)?;
    let of_bytes = report.series.into_iter().filter(|series| series.unit == "bytes");
    Ok(of_bytes.map(series).collect())
}

fn series(found: report::Series) -> Series {
    let limit = found.limit_bytes.filter(|limit| limit.is_finite() && *limit > 0.0);
    // A time without a value is a gap, which the times of the other values show.
    let known = found.points.into_iter().filter_map(|(at, value)| Some((at, value?)));
    ascending(found.name, known, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_bytes_are_taken_with_their_limit() {
        let text = br#"{"schema":"memwarden.report/1","series":[
            {"name":"host","points":[[1,10],[2,null],[3,30],[3,40]],"limit_bytes":100},
            {"name":"busy","unit":"ratio","points":[[1,0.5]]}]}"#;
        let series = read(text).unwrap();
        assert_eq!(series.len(), 1);
        let rows: Vec<_> = series[0].rows.iter().map(|row| (row.at, row.used, row.limit)).collect();
        assert_eq!(rows, [(1.0, 10.0, Some(100.0)), (3.0, 30.0, Some(100.0))]);
        assert_eq!(series[0].remarks.len(), 1);
        assert!(read(b"{}").is_err());
    }
}
