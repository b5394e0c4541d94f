//! CDI files, in YAML or JSON: which device nodes a named device of containers has. Written by the drivers of Kubernetes'
//! resource claims (DRA), one for each claim. Format: SPEC.md of cncf-tags/container-device-interface.

use saphyr_parser::{Event, Parser};

/// Maximum size of a file in bytes; that of a claim has about 20 KB.
pub const LARGEST: u64 = 1 << 20;
/// Maximum depth; the deepest key that is read is five levels down.
const DEEPEST: usize = 32;

/// A file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cdi {
    /// Vendor and class, such as `k8s.gpu.nvidia.com/claim`.
    pub kind: String,
    pub devices: Vec<CdiDevice>,
}

/// A device of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CdiDevice {
    /// Its name, unique for the kind.
    pub name: String,
    /// The paths of its device nodes in containers. The same in the host where no other one is given.
    pub nodes: Vec<String>,
}

/// A mapping with the key that waits for its value, or a sequence.
enum Open {
    Mapping(Option<String>),
    Sequence,
}

/// Parses a file; absent where it is not valid, or has aliases, which CDI files do not.
pub fn parse(text: &str) -> Option<Cdi> {
    let mut cdi = Cdi::default();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.ok()?;
        match event {
            Event::Alias(_) => return None,
            Event::MappingStart(..) => {
                if matches!(&path(&open)[..], ["devices", "[]"]) {
                    cdi.devices.push(CdiDevice::default());
                }
                open.push(Open::Mapping(None));
            }
            Event::SequenceStart(..) => open.push(Open::Sequence),
            Event::MappingEnd | Event::SequenceEnd => {
                open.pop();
                end_value(&mut open);
            }
            Event::Scalar(text, ..) => {
                if let Some(Open::Mapping(key @ None)) = open.last_mut() {
                    *key = Some(text.into_owned());
                    continue;
                }
                match (&path(&open)[..], cdi.devices.last_mut()) {
                    (["kind"], _) => cdi.kind = text.into_owned(),
                    (["devices", "[]", "name"], Some(device)) => device.name = text.into_owned(),
                    (["devices", "[]", "containerEdits", "deviceNodes", "[]", "path"], Some(device)) => {
                        device.nodes.push(text.into_owned());
                    }
                    _ => {}
                }
                end_value(&mut open);
            }
            _ => {}
        }
        if open.len() > DEEPEST {
            return None;
        }
    }
    (!cdi.kind.is_empty()).then_some(cdi)
}

/// The keys that lead to the value that begins now, with `[]` for an entry of a sequence.
fn path(open: &[Open]) -> Vec<&str> {
    fn name(open: &Open) -> &str {
        match open {
            Open::Mapping(key) => key.as_deref().unwrap_or_default(),
            Open::Sequence => "[]",
        }
    }
    open.iter().map(name).collect()
}

/// The next scalar of the mapping is a key.
fn end_value(open: &mut [Open]) {
    if let Some(Open::Mapping(key)) = open.last_mut() {
        *key = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As gpu.nvidia.com writes it for a claim, shortened.
    const CLAIM: &str = "
cdiVersion: 0.5.0
kind: k8s.gpu.nvidia.com/claim
devices:
- name: c8593c85-440d-4156-b199-aea592ff83df-gpu-0
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
      hostPath: /dev/nvidia3
      permissions: rw
    - {path: /dev/nvidia-uvm}
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes: [{path: /dev/nvidiactl}]
  hooks:
  - {hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [a, b]}
";

    #[test]
    fn the_nodes_of_each_device_are_found() {
        let device = |name: &str, nodes: &[&str]| CdiDevice {
            name: name.to_owned(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        };
        let expected =
            device("c8593c85-440d-4156-b199-aea592ff83df-gpu-0", &["/dev/nvidia3", "/dev/nvidia-uvm"]);
        let claim = Cdi { kind: "k8s.gpu.nvidia.com/claim".to_owned(), devices: vec![expected] };
        assert_eq!(parse(CLAIM), Some(claim));
        // JSON with its keys in another order.
        let json = r#"{"devices": [{"containerEdits": {"deviceNodes": [{"path": "/dev/x"}]}, "name": "a"},
            {"name": "b", "containerEdits": {}}], "kind": "v/c"}"#;
        let devices = vec![device("a", &["/dev/x"]), device("b", &[])];
        assert_eq!(parse(json), Some(Cdi { kind: "v/c".to_owned(), devices }));
    }

    #[test]
    fn other_texts_are_refused() {
        let deep = format!("kind: v/c\ndevices: {}", "[".repeat(1000));
        for text in ["", "kind: [", "devices: []", "kind: v/c\na: &a 1\nb: *a\n", &deep] {
            assert_eq!(parse(text), None, "{text:.40}");
        }
    }
}
