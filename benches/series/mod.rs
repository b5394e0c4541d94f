//! The series that the benches encode and scrape.

use memwarden::model::desc::{Desc, Metric as _};
use memwarden::model::label::Label;
use memwarden::model::point::{Family, Point};

mod metrics {
    use memwarden::model::units::{Bytes, Count, Ratio, Seconds};

    memwarden::metrics! {
        /// A share, with a fraction.
        pub SHARE: Gauge<Ratio> = "memwarden_bench_share_ratio" {workload, kind, user, gpu};
        /// A size, whole and large.
        pub SIZE: Gauge<Bytes> = "memwarden_bench_size_bytes" {workload, kind, user, gpu};
        /// A time, with a fraction.
        pub TIME: Counter<Seconds> = "memwarden_bench_time_seconds_total" {workload, kind, user, gpu};
        /// A count, whole and small.
        pub COUNT: Counter<Count> = "memwarden_bench_things_total" {workload, kind, user, gpu}.counting("{thing}");
    }
}

/// 10,000 series in four families, defined in this file only, so that results stay comparable.
pub(crate) fn families() -> Vec<Family> {
    vec![
        family(metrics::SHARE.desc(), |n| f64::from(n) / 2_500.0),
        family(metrics::SIZE.desc(), |n| 4_096.0 * f64::from(1_000_000 + n)),
        family(metrics::TIME.desc(), |n| 0.01 * f64::from(100_003 * n % 10_000_019)),
        family(metrics::COUNT.desc(), |n| f64::from(n % 100)),
    ]
}

fn family(desc: &'static Desc, value: impl Fn(u32) -> f64) -> Family {
    let points = (0..2_500_u32).map(|n| {
        let workload = Label::from(format!("job_{}", 1_000 + n));
        let labels = [workload, "slurm".into(), "owner".into(), (n % 8).into()];
        Point { labels: labels.into(), value: value(n) }
    });
    Family::new(desc, points.collect())
}
