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
    /// Whether it is the memory of a GPU, all of which an allocator may have reserved on purpose.
    pub gpu: bool,
    /// Its rows, in ascending order of time.
    pub rows: Vec<Row>,
    /// Corrections made while reading.
    pub remarks: Vec<String>,
}

impl Series {
    /// A series of points of a time in seconds and a value in bytes, with one limit. A time without a value is a gap,
    /// which the times of the other values show; points that are not amounts, or out of order, are counted in a remark.
    pub fn of_points(
        name: String,
        limit: Option<f64>,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
    ) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let mut left_out = 0;
        for (at, used) in points.into_iter().filter_map(|(at, value)| Some((at, value?))) {
            let follows = rows.last().is_none_or(|before| before.at < at);
            if used.is_finite() && used >= 0.0 && at.is_finite() && follows {
                rows.push(Row { at, used, limit, ..Row::default() });
            } else {
                left_out += 1;
            }
        }
        let remark = format!("{left_out} points that are not amounts, or out of order, were ignored");
        Self { name, gpu: false, rows, remarks: Vec::from_iter((left_out > 0).then_some(remark)) }
    }
}
