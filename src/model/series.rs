//! A recorded series of one subject.

/// One row of a recording; times in seconds, values in bytes; unknown values are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    /// Seconds since the time origin of the recording.
    pub at: f64,
    /// Memory that counts against the limit.
    pub used: f64,
    /// The limit at that time.
    pub limit: Option<f64>,
    /// Anonymous and shared memory.
    pub unreclaimable: Option<f64>,
    /// Memory that the job reports as allocated.
    pub allocated: Option<f64>,
}

/// A recorded series, in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its origin, for display.
    pub name: String,
    /// Its rows, in ascending order of time.
    pub rows: Vec<Row>,
    /// Corrections made while reading.
    pub remarks: Vec<String>,
}
