//! A recorded series: what was known of one subject at many times.

/// One row of a recording; times in seconds, values in bytes, unknown absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    /// Seconds since whatever the recording counts from.
    pub at: f64,
    /// What counts against the limit.
    pub used: f64,
    /// The limit at that time.
    pub limit: Option<f64>,
    /// Anonymous and shared memory.
    pub unreclaimable: Option<f64>,
    /// What the job has allocated, by its own account.
    pub allocated: Option<f64>,
}

/// A recorded series, in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Where it is from, for people.
    pub name: String,
    /// Its rows; times rise.
    pub rows: Vec<Row>,
    /// What was left out or put right on reading.
    pub remarks: Vec<String>,
}
