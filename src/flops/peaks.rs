//! Peak performance of GPUs: dense operations per second, one row per product, each with its source.
//!
//! Public tables include values for sparse matrices, which are twice as high, and guess unknown devices. Here a
//! device is recognized by the whole words of its driver name, all of which must be known, and an unknown device has
//! no peak.

/// Number format of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
}

impl Precision {
    /// Parses the `precision` of the job protocol, as PyTorch and Lightning name it.
    ///
    /// Absent for others: a job in fp8 or fp32 has no MFU relative to a bf16 peak.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().trim_start_matches("torch.") {
            "bf16" | "bfloat16" | "bf16-mixed" | "bf16-true" => Some(Self::Bf16),
            "fp16" | "float16" | "half" | "16-mixed" | "16-true" => Some(Self::Fp16),
            _ => None,
        }
    }
}

/// A peak that the operator configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The driver's name of the device, case-insensitive; a `*` at the end matches any suffix.
    pub name: String,
    /// Dense operations per second in the precision of the training.
    pub flops: f64,
}

type Words = &'static [&'static str];

struct PeakRow {
    /// The word that names the product.
    product: &'static str,
    /// If not empty, one of these words must be in the name too.
    form: Words,
    /// Further words that may be in the name.
    may: Words,
    /// In 10^12 operations per second.
    bf16: Option<f64>,
    fp16: Option<f64>,
}

const fn row(product: &'static str, form: Words, may: Words, both: f64) -> PeakRow {
    PeakRow { product, form, may, bf16: Some(both), fp16: Some(both) }
}

const fn half(product: &'static str, form: Words, may: Words, fp16: f64) -> PeakRow {
    PeakRow { product, form, may, bf16: None, fp16: Some(fp16) }
}

/// Words without influence on the peak.
const MAKERS: [&str; 5] = ["nvidia", "amd", "instinct", "tesla", "graphics"];

const HOPPER: Words = &["64gb", "80gb", "94gb", "96gb", "141gb", "hbm3", "hbm3e", "hbm2e"];
const AMPERE: Words = &["40gb", "80gb", "sxm", "sxm4", "pcie", "pg509", "pg506"];

/// Dense peaks; the first matching row applies.
const ROWS: &[PeakRow] = &[
    // torchtitan, torchtitan/tools/utils.py, get_peak_flops: H100 by its form, after NVIDIA's data sheet.
    row("h100", &["pcie", "hbm2e"], HOPPER, 756.0),
    row("h100", &["nvl"], HOPPER, 835.0),
    row("h100", &["sxm", "sxm5", "hbm3"], HOPPER, 989.0),
    // The export versions are the same chips with slower links, with the peak of the H100.
    row("h800", &["pcie", "hbm2e"], HOPPER, 756.0),
    row("h800", &["nvl"], HOPPER, 835.0),
    row("h800", &["sxm", "sxm5", "hbm3"], HOPPER, 989.0),
    // NVIDIA, H200 data sheet: H200 NVL has 1,671 with sparsity.
    row("h200", &["nvl"], HOPPER, 835.0),
    // torchtitan: H200, as H100 SXM; H20 148.
    row("h200", &[], HOPPER, 989.0),
    row("h20", &[], HOPPER, 148.0),
    // torchtitan: A100 312, whatever its form; A800 is the same chip.
    row("a100", &[], AMPERE, 312.0),
    row("a800", &[], AMPERE, 312.0),
    // torchtitan: B200 and B300 2,250; of the Grace versions 2,500 a GPU.
    row("b200", &[], &["sxm6", "180gb", "192gb", "hbm3e"], 2250.0),
    row("b300", &[], &["sxm6", "ac", "288gb", "hbm3e"], 2250.0),
    row("gb200", &[], &["192gb", "hbm3e"], 2500.0),
    row("gb300", &[], &["288gb", "hbm3e"], 2500.0),
    // torchtitan: L40S 362, A6000 154.85.
    row("l40s", &[], &[], 362.0),
    row("a6000", &["rtx"], &[], 154.85),
    // Lightning, lightning_fabric/utilities/throughput.py: L40 181, L4 121, A10G 125.
    row("l40", &[], &[], 181.0),
    row("l4", &[], &[], 121.0),
    row("a10g", &[], &[], 125.0),
    // Lightning: V100 and T4 have no bf16 in their tensor cores.
    half("v100", &["pcie"], &["16gb", "32gb"], 112.0),
    half("v100", &["sxm2", "sxm3"], &["16gb", "32gb", "lm"], 125.0),
    half("t4", &[], &[], 65.0),
    // PyTorch, torch/_inductor/analysis/device_info.py, after AMD's data sheets.
    row("mi300x", &[], &["oam", "vf", "192gb"], 1307.4),
    row("mi300a", &[], &[], 980.6),
    // torchtitan: MI355X 2,500; MI325X as MI300X; MI250X for each of its two dies, which are separate devices.
    row("mi325x", &[], &["oam", "256gb"], 1300.0),
    row("mi355x", &[], &["oam", "288gb"], 2500.0),
    row("mi250x", &[], &["mi250"], 191.5),
];

/// Peak of one device in dense operations per second, by its driver name.
///
/// Absent for an unknown device, a slice of one (MIG, vGPU), or a precision that its tensor cores lack.
pub fn peak(name: &str, precision: Precision, overrides: &[Override]) -> Option<f64> {
    if let Some(known) = overrides.iter().find(|known| known.fits(name)) {
        return super::positive(known.flops);
    }
    let lower = name.to_ascii_lowercase();
    let words: Vec<&str> = lower
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !MAKERS.contains(word))
        .collect();
    let row = ROWS.iter().find(|row| row.fits(&words))?;
    match precision {
        Precision::Bf16 => row.bf16,
        Precision::Fp16 => row.fp16,
    }
    .map(|tera| tera * 1e12)
}

impl PeakRow {
    fn fits(&self, words: &[&str]) -> bool {
        words.contains(&self.product)
            && (self.form.is_empty() || words.iter().any(|word| self.form.contains(word)))
            && words
                .iter()
                .all(|word| *word == self.product || self.form.contains(word) || self.may.contains(word))
    }
}

impl Override {
    fn fits(&self, name: &str) -> bool {
        let (wanted, name) = (self.name.to_lowercase(), name.to_lowercase());
        match wanted.strip_suffix('*') {
            Some(front) => name.starts_with(front),
            None => name == wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tera(name: &str) -> Option<f64> {
        peak(name, Precision::Bf16, &[]).map(|flops| (flops / 1e10).round() / 100.0)
    }

    #[test]
    fn names_of_drivers() {
        for (name, expected) in [
            ("NVIDIA H100 80GB HBM3", Some(989.0)),
            ("NVIDIA H100 PCIe", Some(756.0)),
            ("NVIDIA H100 NVL", Some(835.0)),
            ("NVIDIA H800", None),
            ("NVIDIA H800 PCIe", Some(756.0)),
            ("NVIDIA H200", Some(989.0)),
            ("NVIDIA H200 NVL", Some(835.0)),
            ("NVIDIA H20", Some(148.0)),
            ("NVIDIA GH200 480GB", None),
            ("NVIDIA A100-SXM4-40GB", Some(312.0)),
            ("NVIDIA A100-SXM4-80GB", Some(312.0)),
            ("NVIDIA A100 80GB PCIe", Some(312.0)),
            ("A100-PCIE-40GB", Some(312.0)),
            ("NVIDIA A800-SXM4-80GB", Some(312.0)),
            ("NVIDIA A10", None),
            ("NVIDIA A10G", Some(125.0)),
            ("NVIDIA B200", Some(2250.0)),
            ("NVIDIA GB200", Some(2500.0)),
            ("NVIDIA B300 SXM6 AC", Some(2250.0)),
            ("NVIDIA L40S", Some(362.0)),
            ("NVIDIA L40", Some(181.0)),
            ("NVIDIA L4", Some(121.0)),
            ("NVIDIA RTX A6000", Some(154.85)),
            ("AMD Instinct MI300X", Some(1307.4)),
            ("AMD Instinct MI250X/MI250", Some(191.5)),
            // Slices, and unknown devices.
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
            ("GRID A100-10C", None),
            ("NVIDIA A100-SXM-64GB", None),
            ("NVIDIA GeForce RTX 4090", None),
            ("NVIDIA H100", None),
            ("Ascend 910B", None),
            ("", None),
        ] {
            assert_eq!(tera(name), expected, "{name}");
        }
        assert_eq!(tera("Tesla T4"), None);
        assert_eq!(peak("Tesla T4", Precision::Fp16, &[]), Some(65e12));
        assert_eq!(peak("Tesla V100-SXM2-16GB", Precision::Fp16, &[]), Some(125e12));
    }

    #[test]
    fn a_configured_peak_replaces_the_table() {
        let known = [
            Override { name: "ascend 910*".to_owned(), flops: 3.2e14 },
            Override { name: "NVIDIA L4".to_owned(), flops: 0.0 },
        ];
        assert_eq!(peak("Ascend 910B", Precision::Bf16, &known), Some(3.2e14));
        assert_eq!(peak("NVIDIA L4", Precision::Bf16, &known), None);
        assert_eq!(peak("NVIDIA L40", Precision::Bf16, &known), Some(181e12));
    }

    #[test]
    fn fp8_has_no_mfu_of_a_bf16_peak() {
        for name in ["fp8", "fp32", "tf32", "mxfp8", ""] {
            assert_eq!(Precision::from_name(name), None, "{name}");
        }
        assert_eq!(Precision::from_name("torch.bfloat16"), Some(Precision::Bf16));
        assert_eq!(Precision::from_name("16-mixed"), Some(Precision::Fp16));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(name: String) {
            let _ = peak(&name, Precision::Bf16, &[Override { name: name.clone(), flops: 1.0 }]);
            let _ = peak(&name, Precision::Fp16, &[]);
        }
    }
}
