//! Answers of the HTTP API of Prometheus: instant vectors (`/api/v1/query`) and alerts (`/api/v1/alerts`).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Alert;

/// One series at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
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
struct Answer<D> {
    data: Option<D>,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Vector {
    result: Vec<Element>,
}

#[derive(Deserialize)]
struct Element {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

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
    let answer: Answer<D> = serde_json::from_slice(json)?;
    answer.data.ok_or(AnswerError::Server(answer.error))
}

/// Reads an instant vector. Values that are NaN are left out.
///
/// # Errors
/// An answer that is not an instant vector.
pub fn samples(json: &[u8]) -> Result<Vec<Sample>, AnswerError> {
    let vector: Vector = data(json)?;
    let mut samples = Vec::with_capacity(vector.result.len());
    for Element { metric, value: (_, text) } in vector.result {
        let value: f64 = text.parse().map_err(|_| AnswerError::Number(text))?;
        if !value.is_nan() {
            samples.push(Sample { labels: metric, value });
        }
    }
    Ok(samples)
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
