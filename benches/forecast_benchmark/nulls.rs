//! The null tests: how often series without growth are called leaking or warned of, with the Monte Carlo error.

use super::score;
use super::{judged, methods, simulate};

/// Lengths of the series, in samples.
const LENGTHS: [u32; 3] = [400, 1_000, 2_500];

/// Prints, for each kind and length, the share of series whose final state is leaking with the half-width of its 95 %
/// confidence interval (Wilson), the share of time in alarm, and the share of warnings with the limit directly above
/// the maximum.
pub(crate) fn print(count: u64) {
    let Some(method) = methods::all().into_iter().next() else { return };
    println!("{count} series of each kind; leaking ± 95 % / time in alarm / warnings near the limit");
    for kind in simulate::NULLS {
        let mut line = format!("{kind:10}");
        for samples in LENGTHS {
            let cases: Vec<_> = (0..count).map(|seed| simulate::null(kind, samples, seed)).collect();
            let judged = judged(&method.assess, &cases);
            let table = score::table(&judged.iter().collect::<Vec<_>>());
            #[expect(clippy::cast_precision_loss, reason = "counts")]
            let (n, wrong) =
                (count as f64, judged.iter().filter(|(judged, _)| !judged.is_right()).count() as f64);
            line.push_str(&format!(
                "  {:.3} ± {:.3} / {:.3} / {:.4}",
                wrong / n,
                wilson(wrong / n, n),
                table.value("flat_on"),
                table.value("false_near")
            ));
        }
        println!("{line}");
    }
}

/// Half the width of the 95 % interval of a share (Wilson 1927).
fn wilson(share: f64, n: f64) -> f64 {
    const Z: f64 = 1.96;
    Z / (1.0 + Z * Z / n) * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt()
}
