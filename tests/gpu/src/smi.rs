//! `nvidia-smi -q -x`: the figures of each GPU, by the path of their elements.

use std::collections::BTreeMap;

use anyhow::Context as _;
use roxmltree::{Document, Node, ParsingOptions};

/// What nvidia-smi says of one GPU: texts by path, such as `fb_memory_usage/used`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpu {
    pub(crate) texts: BTreeMap<String, String>,
    /// Memory in bytes by process.
    pub(crate) processes: BTreeMap<u32, Option<f64>>,
}

/// Reads the output.
///
/// # Errors
/// It is not XML.
pub(crate) fn read(xml: &str) -> anyhow::Result<Vec<Gpu>> {
    // The output names a DTD, which is not read.
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(xml, options).context("nvidia-smi -q -x")?;
    let gpus = document.root_element().children().filter(|node| node.has_tag_name("gpu"));
    Ok(gpus.map(gpu).collect())
}

fn gpu(node: Node<'_, '_>) -> Gpu {
    let mut gpu = Gpu::default();
    for element in node.descendants().filter(|element| element.has_tag_name("process_info")) {
        let text = |name: &str| {
            let child = element.children().find(|child| child.has_tag_name(name));
            child.and_then(|child| child.text()).unwrap_or_default().trim().to_owned()
        };
        if let Ok(pid) = text("pid").parse() {
            gpu.processes.insert(pid, number(&text("used_memory")));
        }
    }
    collect(node, "", &mut gpu.texts);
    gpu
}

fn collect(node: Node<'_, '_>, path: &str, texts: &mut BTreeMap<String, String>) {
    for child in node.children().filter(Node::is_element) {
        let name = child.tag_name().name();
        let place = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        if child.children().any(|inner| inner.is_element()) {
            collect(child, &place, texts);
        } else if let Some(text) = child.text() {
            texts.entry(place).or_insert_with(|| text.trim().to_owned());
        }
    }
}

/// A figure in base units: bytes, watts, hertz, degrees, ratios; `None` for `N/A` and for texts.
pub(crate) fn number(text: &str) -> Option<f64> {
    match text {
        "Enabled" | "Yes" | "Active" => return Some(1.0),
        "Disabled" | "No" | "Not Active" => return Some(0.0),
        _ => {}
    }
    let (figure, unit) = text.split_once(' ').unwrap_or((text, ""));
    let figure = figure.strip_prefix('P').unwrap_or(figure);
    let figure: f64 = figure.strip_suffix('x').unwrap_or(figure).parse().ok()?;
    let factor = match unit {
        "MiB" => 1_048_576.0,
        "KiB" => 1_024.0,
        "MHz" => 1e6,
        "%" => 0.01,
        "" | "C" | "W" => 1.0,
        _ => return None,
    };
    Some(figure * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shaped as the output of drivers since 535; the figures are made up.
    const OUTPUT: &str = r#"<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>550.54</driver_version>
<gpu id="00000000:01:00.0"><product_name>NVIDIA A</product_name>
<fb_memory_usage><total>81559 MiB</total><used>5 MiB</used></fb_memory_usage>
<gpu_power_readings><instant_power_draw>72.10 W</instant_power_draw></gpu_power_readings>
<fan_speed>N/A</fan_speed><performance_state>P8</performance_state>
<processes><process_info><pid>12</pid><used_memory>300 MiB</used_memory></process_info>
<process_info><pid>13</pid><used_memory>N/A</used_memory></process_info></processes></gpu></nvidia_smi_log>"#;

    #[test]
    fn figures_are_read_in_base_units() {
        let gpus = read(OUTPUT).unwrap();
        let figure = |path: &str| gpus[0].texts.get(path).and_then(|text| number(text));
        assert_eq!(figure("fb_memory_usage/total"), Some(81_559.0 * 1_048_576.0));
        assert_eq!(figure("gpu_power_readings/instant_power_draw"), Some(72.1));
        assert_eq!(figure("performance_state"), Some(8.0));
        assert_eq!(figure("fan_speed"), None);
        assert_eq!(gpus[0].processes.get(&12), Some(&Some(300.0 * 1_048_576.0)));
        assert_eq!(gpus[0].processes.get(&13), Some(&None));
        assert!(read("no XML").is_err());
    }

    #[test]
    fn texts_have_units() {
        for (text, expected) in [
            ("16x", Some(16.0)),
            ("30 %", Some(0.3)),
            ("1980 MHz", Some(1.98e9)),
            ("Yes", Some(1.0)),
            ("0 KB/s", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }
}
