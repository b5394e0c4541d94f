//! Series from the answer of a Prometheus server to a range query.
//!
//! The format: <https://prometheus.io/docs/prometheus/latest/querying/api/#range-vectors>.
//! Values are text; `NaN`, `+Inf` and `-Inf` are unknown and ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::ascending;
use crate::model::series::Series;

/// The reason why an answer has no series.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The answer is not JSON of the expected form.
    #[error("the answer is not that of a Prometheus server: {0}")]
    Shape(#[from] serde_json::Error),
    /// The server refused the query.
    #[error("the server refused the query: {0}")]
    Refused(String),
    /// The answer is of another type than a range query's.
    #[error("the answer is a {0}; a range query that gives series is needed")]
    Type(String),
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    #[serde(default)]
    result: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct MatrixSeries {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

/// The series in an answer, in its order; each row has the time and the value.
///
/// # Errors
/// [`AnswerError`].
pub fn read(json: &[u8]) -> Result<Vec<Series>, AnswerError> {
    let answer: Answer = serde_json::from_slice(json)?;
    let Some(data) = answer.data.filter(|_| answer.status == "success") else {
        return Err(AnswerError::Refused(answer.error.chars().take(300).collect()));
    };
    if data.result_type != "matrix" {
        return Err(AnswerError::Type(data.result_type.chars().take(40).collect()));
    }
    let found = data.result.into_iter().map(serde_json::from_value::<MatrixSeries>);
    let series = |MatrixSeries { metric, values }| {
        let number = |(at, value): (f64, String)| (at, value.parse().unwrap_or(f64::NAN));
        ascending(name(&metric), values.into_iter().map(number), None)
    };
    found.map(|found| Ok(series(found?))).collect()
}

/// The series as Prometheus writes it: name and labels.
fn name(metric: &BTreeMap<String, String>) -> String {
    let labels = metric.iter().filter(|(label, _)| *label != "__name__");
    let labels: Vec<String> = labels.map(|(label, value)| format!("{label}={value:?}")).collect();
    let name = metric.get("__name__").map_or("", String::as_str);
    if labels.is_empty() && !name.is_empty() {
        name.to_owned()
    } else {
        format!("{name}{{{}}}", labels.join(","))
    }
}

/// Joins the answers for consecutive periods.
pub fn join(into: &mut Vec<Series>, more: Vec<Series>) {
    for found in more {
        match into.iter_mut().find(|series| series.name == found.name) {
            Some(series) => {
                let last = series.rows.last().map_or(f64::NEG_INFINITY, |row| row.at);
                series.rows.extend(found.rows.into_iter().filter(|row| row.at > last));
                series.remarks.extend(found.remarks);
            }
            None => into.push(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::series::Row;

    #[test]
    fn a_matrix_is_read() {
        let text = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"up","instance":"a:1"},"values":[[1.5,"10"],[2.5,"NaN"],[3.5,"+Inf"],[4.5,"1e3"]]},
            {"metric":{},"values":[]}]}}"#;
        let series = read(text).unwrap();
        assert_eq!(series[0].name, "up{instance=\"a:1\"}");
        let rows: Vec<_> = series[0].rows.iter().map(|row| (row.at, row.used)).collect();
        assert_eq!(rows, [(1.5, 10.0), (4.5, 1000.0)]);
        assert_eq!(series[0].remarks.len(), 1);
        assert_eq!((series[1].name.as_str(), series[1].rows.len()), ("{}", 0));
    }

    #[test]
    fn answers_are_joined_without_their_overlap() {
        let row = |at| Row { at, ..Row::default() };
        let series =
            |rows: &[f64]| Series { rows: rows.iter().copied().map(row).collect(), ..Series::default() };
        let mut all = vec![series(&[1.0, 2.0])];
        join(&mut all, vec![series(&[2.0, 3.0])]);
        assert_eq!(all[0].rows.iter().map(|row| row.at).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn errors_are_described() {
        let refused =
            read(br#"{"status":"error","errorType":"bad_data","error":"parse error"}"#).unwrap_err();
        assert_eq!(refused.to_string(), "the server refused the query: parse error");
        let vector = read(br#"{"status":"success","data":{"resultType":"vector","result":[]}}"#).unwrap_err();
        assert!(vector.to_string().contains("vector"), "{vector}");
        assert!(read(b"<html>").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
