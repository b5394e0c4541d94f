//! Answers of the HTTP API of Prometheus: instant vectors (`/api/v1/query`) and alerts (`/api/v1/alerts`).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Alert;

/// One series at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    /// The value of a label; empty where it has none.
    pub fn label(&self, name: &str) -> String {
        self.labels.get(name).cloned().unwrap_or_default()
    }

    /// The first of these samples that has the same values of some labels.
    pub(super) fn same<'s>(&self, samples: &'s [Self], labels: &[&str]) -> Option<&'s Self> {
        samples
            .iter()
            .find(|other| labels.iter().all(|name| self.labels.get(*name) == other.labels.get(*name)))
    }
}

/// One series over a time range.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub labels: BTreeMap<String, String>,
    /// Unix times in seconds, in order, with the values; a value that is missing has no point.
    pub points: Vec<(f64, f64)>,
}

impl Range {
    /// The value of a label; empty where it has none.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It is not JSON, or not of this API.
    #[error("the answer is not one of the API of Prometheus")]
    Format(#[from] serde_json::Error),
    /// The server reports an error.
    #[error("the server answers: {0}")]
    Server(String),
    /// A value is not a number.
    #[error("the answer has a value that is not a number: {0}")]
    Number(String),
}

#[derive(Deserialize)]
struct PrometheusAnswer<D> {
    data: Option<D>,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Results<T> {
    result: T,
}

/// A series: its value, or its values over a time range.
#[derive(Deserialize)]
struct Element<V> {
    metric: BTreeMap<String, String>,
    #[serde(alias = "values")]
    value: V,
}

/// A scalar: its time, and its value as text.
#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<RawAlert>,
}

#[derive(Deserialize)]
struct RawAlert {
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    state: String,
}

fn data<'j, D: Deserialize<'j>>(json: &'j [u8]) -> Result<D, AnswerError> {
    let answer: PrometheusAnswer<D> = serde_json::from_slice(json)?;
    answer.data.ok_or(AnswerError::Server(answer.error))
}

/// Reads an instant vector. Values that are NaN are left out.
///
/// # Errors
/// An answer that is not an instant vector.
pub fn samples(json: &[u8]) -> Result<Vec<Sample>, AnswerError> {
    let Results::<Vec<Element<(f64, String)>>> { result } = data(json)?;
    let mut samples = Vec::with_capacity(result.len());
    for Element { metric, value: (_, text) } in result {
        let value: f64 = text.parse().map_err(|_| AnswerError::Number(text))?;
        if !value.is_nan() {
            samples.push(Sample { labels: metric, value });
        }
    }
    Ok(samples)
}

/// Reads the series of a range query. Values that are not finite are left out.
///
/// # Errors
/// An answer that is not a range vector.
pub fn ranges(json: &[u8]) -> Result<Vec<Range>, AnswerError> {
    let Results::<Vec<Element<Vec<(f64, String)>>>> { result } = data(json)?;
    let mut ranges = Vec::with_capacity(result.len());
    for Element { metric, value: values } in result {
        let mut points = Vec::with_capacity(values.len());
        for (time, text) in values {
            let value: f64 = text.parse().map_err(|_| AnswerError::Number(text))?;
            if value.is_finite() {
                points.push((time, value));
            }
        }
        ranges.push(Range { labels: metric, points });
    }
    Ok(ranges)
}

/// Reads the Unix time in seconds that the query `time()` is answered with: the server's clock.
///
/// # Errors
/// An answer that is not a scalar.
pub fn server_time(json: &[u8]) -> Result<f64, AnswerError> {
    let Results::<(f64, String)> { result: (_, text) } = data(json)?;
    text.parse().map_err(|_| AnswerError::Number(text))
}

/// Reads the firing alerts that memwarden's rules define: those whose name is in `names`.
///
/// # Errors
/// An answer that is not a list of alerts.
pub fn alerts(json: &[u8], names: &dyn Fn(&str) -> bool) -> Result<Vec<Alert>, AnswerError> {
    let found: Alerts = data(json)?;
    let firing = found.alerts.into_iter().filter(|alert| alert.state == "firing");
    let alerts = firing.map(|RawAlert { labels, mut annotations, .. }| Alert {
        name: labels.get("alertname").cloned().unwrap_or_default(),
        severity: labels.get("severity").cloned().unwrap_or_default(),
        text: annotations.remove("description").or_else(|| annotations.remove("summary")).unwrap_or_default(),
        labels,
    });
    Ok(alerts.filter(|alert| names(&alert.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_errors_are_read() {
        let json = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"instance":"a"},"value":[1,"2.5"]},{"metric":{},"value":[1,"NaN"]},{"metric":{},"value":[1,"+Inf"]}]}}"#;
        let samples = samples(json).unwrap();
        assert_eq!((samples.len(), samples[0].value, samples[0].label("instance").as_str()), (2, 2.5, "a"));
        let error = super::samples(br#"{"status":"error","errorType":"bad_data","error":"parse error"}"#);
        assert_eq!(error.unwrap_err().to_string(), "the server answers: parse error");
        assert!(super::samples(b"<html>").is_err());
        let odd = br#"{"data":{"result":[{"metric":{},"value":[1,"x"]}]}}"#;
        assert!(matches!(super::samples(odd), Err(AnswerError::Number(_))));
    }

    #[test]
    fn ranges_and_the_clock_are_read() {
        let json = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"instance":"a"},"values":[[1,"2.5"],[16,"NaN"],[31,"3"]]}]}}"#;
        let ranges = ranges(json).unwrap();
        assert_eq!((ranges[0].label("instance"), ranges[0].label("run")), ("a", ""));
        assert_eq!(ranges[0].points, [(1.0, 2.5), (31.0, 3.0)]);
        let error = super::ranges(br#"{"status":"error","error":"exceeded maximum resolution"}"#);
        assert_eq!(error.unwrap_err().to_string(), "the server answers: exceeded maximum resolution");
        let odd = br#"{"data":{"result":[{"metric":{},"values":[[1,"x"]]}]}}"#;
        assert!(matches!(super::ranges(odd), Err(AnswerError::Number(_))));
        let clock = br#"{"status":"success","data":{"resultType":"scalar","result":[1.5,"1.5"]}}"#;
        assert!((server_time(clock).unwrap() - 1.5).abs() < 1e-9);
        assert!(server_time(br#"{"data":{"result":[]}}"#).is_err());
    }

    #[test]
    fn only_firing_alerts_of_our_rules_are_kept() {
        let json = br#"{"status":"success","data":{"alerts":[
            {"labels":{"alertname":"GpuHung","severity":"critical"},"annotations":{"description":"it hangs"},"state":"firing"},
            {"labels":{"alertname":"GpuHung"},"annotations":{},"state":"pending"},
            {"labels":{"alertname":"Other"},"state":"firing"}]}}"#;
        let alerts = alerts(json, &|name| name == "GpuHung").unwrap();
        assert_eq!(
            (alerts.len(), alerts[0].text.as_str(), alerts[0].severity.as_str()),
            (1, "it hangs", "critical")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(text in ".{0,300}") {
            let _ = samples(text.as_bytes());
            let _ = alerts(text.as_bytes(), &|_| true);
        }
    }
}
