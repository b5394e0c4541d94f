//! `deploy/kubernetes`: the manifests that kustomize builds, their schemas, and the configurations in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_yaml::Value;

use crate::harness::{memwarden, on_path, program, python_with, tool};

/// The versions of Kubernetes whose schemas are checked: the oldest one of the documentation, and later ones.
const VERSIONS: [&str; 4] = ["1.25", "1.29", "1.33", "1.37"];
const CONFIGURATIONS: [&str; 2] =
    ["deploy/kubernetes/base/memwarden.yaml", "deploy/kubernetes/overlays/enforce/memwarden.yaml"];
const RULES: [(&str, &str); 2] = [
    ("memwarden", "alerts/memwarden.rules.yaml"),
    ("memwarden-fleet", "alerts/memwarden.recording.rules.yaml"),
];
const OBSERVE: [&str; 3] = ["SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"];
const ENFORCE: [&str; 3] = ["KILL", "IPC_LOCK", "SYS_RESOURCE"];

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn documents(text: &str) -> Vec<Value> {
    use serde::Deserialize as _;
    let documents = serde_yaml::Deserializer::from_str(text);
    documents.map(|document| Value::deserialize(document).unwrap()).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A copy of everything that kustomize reads, after `deploy/kubernetes/build`, with an overlay for each name that adds
/// the components to `observe` or `enforce`.
fn tree(overlays: &[(&str, &str, &[&str])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in ["deploy/kubernetes", "dashboards", "alerts"] {
        copy(&root(part), &folder.path().join(part));
    }
    let kubernetes = folder.path().join("deploy/kubernetes");
    let chart: &[&str] = if on_path("kubectl").is_some() { &["--chart"] } else { &[] };
    let built = program(kubernetes.join("build")).args(chart).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for (name, over, components) in overlays {
        let mut text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: memwarden\n\
             resources: [../{over}]\ncomponents:\n"
        );
        for component in *components {
            text += &format!("  - ../../components/{component}\n");
        }
        std::fs::create_dir(kubernetes.join("overlays").join(name)).unwrap();
        std::fs::write(kubernetes.join("overlays").join(name).join("kustomization.yaml"), text).unwrap();
    }
    folder
}

/// The output of kustomize for an overlay; None, with a message, if kubectl is not installed.
fn kustomize(tree: &Path, overlay: &str) -> Option<String> {
    let kubectl = tool("kubectl")?;
    let folder = tree.join("deploy/kubernetes/overlays").join(overlay);
    let done = program(kubectl).arg("kustomize").arg(folder).output().unwrap();
    assert!(done.status.success(), "{overlay}: {}", String::from_utf8_lossy(&done.stderr));
    Some(String::from_utf8(done.stdout).unwrap())
}

fn of<'d>(documents: &'d [Value], kind: &str) -> Vec<&'d Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn names(values: &Value) -> BTreeSet<String> {
    values.as_sequence().unwrap().iter().map(|each| each.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_configurations_pass_check_config() {
    for file in CONFIGURATIONS {
        let done = memwarden(&["check-config"]).arg(root(file)).output().unwrap();
        assert!(done.status.success(), "{file}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn the_rules_of_the_operator_are_those_of_alerts() {
    let done = program(root("deploy/kubernetes/build")).arg("--print").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let made = documents(&String::from_utf8(done.stdout).unwrap());
    assert_eq!(made.len(), RULES.len());
    for (object, (name, file)) in made.iter().zip(RULES) {
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&"PrometheusRule".into(), &name.into()));
        let source: Value = serde_yaml::from_str(&std::fs::read_to_string(root(file)).unwrap()).unwrap();
        assert_eq!(object["spec"], source, "{file}");
    }
    let refused = program(root("deploy/kubernetes/build")).arg("--other").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn the_pod_has_the_rights_that_it_needs_and_no_others() {
    let tree = tree(&[
        ("privileged", "enforce", &["privileged"]),
        ("perf", "observe", &["perf", "nvidia"]),
        ("touch", "enforce", &["touch"]),
    ]);
    let enforces = |overlay: &str| ["enforce", "privileged", "touch"].contains(&overlay);
    let expected =
        |more: &[&str]| OBSERVE.iter().chain(more).map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    for (overlay, capabilities) in [
        ("observe", expected(&[])),
        ("enforce", expected(&ENFORCE)),
        ("privileged", expected(&ENFORCE)),
        ("perf", expected(&["PERFMON"])),
        ("touch", expected(&[&ENFORCE[..], &["SETUID", "SETGID"]].concat())),
    ] {
        let Some(text) = kustomize(tree.path(), overlay) else { return };
        let documents = documents(&text);
        let [set] = of(&documents, "DaemonSet")[..] else { panic!("{overlay}: {text}") };
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(pod["hostPID"], true);
        assert_eq!(pod["priorityClassName"], "system-node-critical");
        assert_eq!(pod["tolerations"][0]["operator"], "Exists");
        assert_eq!(pod["automountServiceAccountToken"], false);
        let [container] = &pod["containers"].as_sequence().unwrap()[..] else { panic!("{overlay}") };
        assert!(container["resources"]["limits"].get("cpu").is_none(), "{overlay}");
        let security = &container["securityContext"];
        assert_eq!(security["privileged"], overlay == "privileged");
        assert_eq!(security.get("allowPrivilegeEscalation").is_none(), overlay == "privileged");
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(names(&security["capabilities"]["add"]), capabilities, "{overlay}");
        assert_eq!(names(&security["capabilities"]["drop"]), BTreeSet::from(["ALL".to_owned()]));
        // In a pod, the name of the host is that of the pod.
        let variables = container["env"].as_sequence().unwrap();
        let place = |name: &str| variables.iter().position(|variable| variable["name"] == name).unwrap();
        assert_eq!(variables[place("NODE_NAME")]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
        assert_eq!(
            variables[place("OTEL_RESOURCE_ATTRIBUTES")]["value"],
            "k8s.node.name=$(NODE_NAME),host.name=$(NODE_NAME),service.instance.id=$(NODE_NAME)"
        );
        assert!(
            place("NODE_NAME") < place("OTEL_RESOURCE_ATTRIBUTES"),
            "only earlier variables are inserted"
        );
        let image = container["image"].as_str().unwrap();
        assert_eq!(image, concat!("memwarden:", env!("CARGO_PKG_VERSION")));
        assert_eq!(pod.get("runtimeClassName").is_some(), overlay == "perf");
        let mounts = container["volumeMounts"].as_sequence().unwrap();
        let writable = |name: &str| {
            let mount = mounts.iter().find(|mount| mount["name"] == name).unwrap();
            mount.get("readOnly").is_none_or(|only| *only == false)
        };
        assert_eq!(writable("cgroup"), enforces(overlay), "{overlay}");
        assert!(writable("run") && writable("state"));
        for name in ["config", "passwd", "kmsg", "pod-resources", "pod-logs", "container-logs"] {
            assert!(!writable(name), "{name}");
        }
        // The pods use the configuration that is generated, under the name that contains its hash.
        let volumes = pod["volumes"].as_sequence().unwrap();
        let config = volumes.iter().find(|volume| volume["name"] == "config").unwrap();
        let [map] = of(&documents, "ConfigMap")[..] else { panic!("{overlay}") };
        assert_eq!(config["configMap"]["name"], map["metadata"]["name"]);
        let file = CONFIGURATIONS[usize::from(enforces(overlay))];
        assert_eq!(map["data"]["memwarden.yaml"], std::fs::read_to_string(root(file)).unwrap());
    }
}

#[test]
fn monitoring_finds_the_pods_and_grafana_the_dashboards() {
    let tree = tree(&[("monitored", "observe", &["prometheus-operator", "dashboards"])]);
    let Some(text) = kustomize(tree.path(), "monitored") else { return };
    let documents = documents(&text);
    for document in &documents {
        let namespaced = document["kind"] != "Namespace";
        assert_eq!(document["metadata"].get("namespace").is_some(), namespaced, "{document:?}");
    }
    let [monitor] = of(&documents, "PodMonitor")[..] else { panic!("{text}") };
    let [set] = of(&documents, "DaemonSet")[..] else { panic!("{text}") };
    let template = &set["spec"]["template"];
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_mapping().unwrap() {
        assert_eq!(&template["metadata"]["labels"][label], value);
    }
    assert!(monitor["spec"]["sampleLimit"].as_u64().unwrap() <= 100_000);
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    assert_eq!(port, &template["spec"]["containers"][0]["ports"][0]["name"]);
    assert_eq!(of(&documents, "PrometheusRule").len(), RULES.len());
    let mut dashboards = 0;
    for map in of(&documents, "ConfigMap") {
        if map["metadata"]["labels"].get("grafana_dashboard").is_none() {
            continue;
        }
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        for (file, content) in map["data"].as_mapping().unwrap() {
            let path = root("dashboards").join(file.as_str().unwrap());
            assert_eq!(content, &std::fs::read_to_string(path).unwrap());
            // kubectl apply keeps a copy in an annotation, for which the API accepts 256 KiB.
            assert!(content.as_str().unwrap().len() < 240 << 10, "{file:?}");
            dashboards += 1;
        }
    }
    assert_eq!(dashboards, crate::shipped::DASHBOARDS.len());
}

/// The objects that Helm renders from the chart, by kind and name.
fn helm(helm: &Path, tree: &Path, arguments: &[&str]) -> Result<BTreeMap<String, Value>, String> {
    let chart = tree.join("deploy/kubernetes/chart");
    let release = ["template", "memwarden", "--namespace", "memwarden"];
    let done = program(helm).args(release).arg(chart).args(arguments).output().unwrap();
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    Ok(by_name(documents(&String::from_utf8(done.stdout).unwrap())))
}

fn by_name(documents: Vec<Value>) -> BTreeMap<String, Value> {
    let named = |object: Value| {
        let name =
            format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        (name, object)
    };
    documents.into_iter().map(named).collect()
}

/// kustomize adds an empty line to folded text, such as the expressions of rules.
fn without_empty_lines(value: Value) -> Value {
    match value {
        Value::String(text) => text.replace("\n\n", "\n").into(),
        Value::Sequence(all) => all.into_iter().map(without_empty_lines).collect(),
        Value::Mapping(all) => {
            Value::Mapping(all.into_iter().map(|(key, value)| (key, without_empty_lines(value))).collect())
        }
        other => other,
    }
}

#[test]
fn the_chart_installs_what_the_manifests_install() {
    let (Some(_), Some(program)) = (tool("kubectl"), tool("helm")) else { return };
    let tree = tree(&[("gpu", "observe", &["nvidia"]), ("monitored", "enforce", &["prometheus-operator"])]);
    let values = ["--set", "prometheusOperator.enabled=true,enforce=true"];
    for (overlay, arguments) in [
        ("observe", &[][..]),
        ("enforce", &["--set", "enforce=true"]),
        ("gpu", &["--set", "runtimeClassName=nvidia"]),
        ("monitored", &values),
    ] {
        let whole = [&["--set", "createNamespace=true"], arguments].concat();
        let rendered = helm(&program, tree.path(), &whole).unwrap();
        let built = by_name(documents(&kustomize(tree.path(), overlay).unwrap()));
        assert!(rendered.keys().eq(built.keys()), "{overlay}: {:?} {:?}", rendered.keys(), built.keys());
        for (name, object) in built {
            let rendered = without_empty_lines(rendered[&name].clone());
            assert_eq!(rendered, without_empty_lines(object), "{overlay}: {name}");
        }
    }
}

#[test]
fn a_value_of_the_chart_replaces_its_field_and_nothing_else() {
    let (Some(_), Some(program)) = (tool("kubectl"), tool("helm")) else { return };
    let tree = tree(&[]);
    let file = tree.path().join("values.yaml");
    let values = "image: r/m:1\nconfig: 'log: {level: debug}'\nnodeSelector: {gpu: 'yes'}\ntolerations: []\n\
                  resources: {limits: {memory: 1Gi}}\nprometheusOperator: {enabled: true, labels: {release: p}}\n";
    std::fs::write(&file, values).unwrap();
    let mut changed = helm(&program, tree.path(), &["--values", file.to_str().unwrap()]).unwrap();
    let values: Value = serde_yaml::from_str(values).unwrap();
    let plain = ["--set", "prometheusOperator.enabled=true"];
    for (name, object) in helm(&program, tree.path(), &plain).unwrap() {
        let mut expected = object;
        match name.split(' ').next().unwrap() {
            "DaemonSet" => {
                let template = &mut expected["spec"]["template"];
                let own = &changed[&name]["spec"]["template"]["metadata"]["annotations"]["checksum/config"];
                assert_eq!(own.as_str().unwrap().len(), 64);
                template["metadata"]["annotations"]["checksum/config"] = own.clone();
                for key in ["nodeSelector", "tolerations"] {
                    template["spec"][key] = values[key].clone();
                }
                for key in ["image", "resources"] {
                    template["spec"]["containers"][0][key] = values[key].clone();
                }
            }
            "ConfigMap" => expected["data"]["memwarden.yaml"] = values["config"].clone(),
            "PodMonitor" | "PrometheusRule" => expected["metadata"]["labels"]["release"] = "p".into(),
            _ => {}
        }
        assert_eq!(changed.remove(&name), Some(expected), "{name}");
    }
    assert!(changed.is_empty(), "{changed:?}");
    for wrong in ["toleration=x", "enforce=maybe", "prometheusOperator.label=x"] {
        assert!(helm(&program, tree.path(), &["--set", wrong]).is_err(), "{wrong}");
    }
    std::fs::remove_dir_all(tree.path().join("deploy/kubernetes/chart/files")).unwrap();
    let refused = helm(&program, tree.path(), &[]).unwrap_err();
    assert!(refused.contains("run deploy/kubernetes/build --chart first"), "{refused}");
}

/// Values like those of other charts for exporters of nodes.
const VALUES: &str = "image: {repository: r/m, tag: '2', digest: \"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}
imagePullSecrets: [{name: registry}]
affinity: {nodeAffinity: {}}
hostNetwork: true
podAnnotations: {a: b}
podLabels: {team: ml, app.kubernetes.io/name: other}
extraArgs: [--log.level=debug]
extraEnv: [{name: E, value: v}]
extraVolumes: [{name: v, emptyDir: {}}]
extraVolumeMounts: [{name: v, mountPath: /v}]
prometheusOperator: {enabled: true, interval: 30s}
runbookUrl: https://book.example/
";

#[test]
fn the_chart_installs_from_the_checkout_and_from_an_archive() {
    let Some(program_of_helm) = tool("helm") else { return };
    let folder = tempfile::tempdir().unwrap();
    let chart = root("deploy/kubernetes/chart");
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, VALUES).unwrap();
    let run = |arguments: &[&std::ffi::OsStr]| {
        let done = program(&program_of_helm).args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    run(&["lint".as_ref(), "--strict".as_ref(), chart.as_ref()]);
    run(&["package".as_ref(), chart.as_ref(), "--destination".as_ref(), folder.path().as_ref()]);
    let archive = folder.path().join(concat!("memwarden-", env!("CARGO_PKG_VERSION"), ".tgz"));
    let render = |chart: &Path| {
        let values = ["--namespace".as_ref(), "monitoring".as_ref(), "--values".as_ref(), file.as_ref()];
        run(&[&["template".as_ref(), "m".as_ref(), chart.as_ref()][..], &values].concat())
    };
    let text = render(&archive);
    assert_eq!(text, render(&chart));
    let objects = documents(&text);
    for object in &objects {
        assert_eq!(object["metadata"]["namespace"], "monitoring", "{object:?}");
    }
    let [set] = of(&objects, "DaemonSet")[..] else { panic!("{text}") };
    let (template, values): (_, Value) = (&set["spec"]["template"], serde_yaml::from_str(VALUES).unwrap());
    let (pod, container) = (&template["spec"], &template["spec"]["containers"][0]);
    let digest = values["image"]["digest"].as_str().unwrap();
    assert_eq!(container["image"], format!("r/m:2@{digest}"));
    for key in ["imagePullSecrets", "affinity", "hostNetwork"] {
        assert_eq!(pod[key], values[key], "{key}");
    }
    for (added, to) in [
        ("extraArgs", &container["args"]),
        ("extraEnv", &container["env"]),
        ("extraVolumes", &pod["volumes"]),
        ("extraVolumeMounts", &container["volumeMounts"]),
    ] {
        assert!(to.as_sequence().unwrap().len() > 1, "{added} are added");
        assert_eq!(to.as_sequence().unwrap().last(), values[added].as_sequence().unwrap().last(), "{added}");
    }
    assert_eq!(
        (&template["metadata"]["annotations"]["a"], &template["metadata"]["labels"]["team"]),
        (&"b".into(), &"ml".into())
    );
    // The label by which the objects find the pods stays.
    assert_eq!(template["metadata"]["labels"]["app.kubernetes.io/name"], "memwarden");
    assert_eq!(of(&objects, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0]["interval"], "30s");
    assert!(text.contains("https://book.example/alerts.html#gpuhung") && !text.contains("file:///"));
}

#[test]
fn the_files_of_the_chart_are_what_kustomize_builds() {
    if tool("kubectl").is_none() {
        return;
    }
    let tree = tree(&[]);
    for name in ["observe.yaml", "enforce.yaml"] {
        let file = Path::new("deploy/kubernetes/chart/files").join(name);
        let [stored, built] = [root("").join(&file), tree.path().join(&file)]
            .map(|path| std::fs::read_to_string(path).unwrap());
        assert!(stored == built, "{name} is old: run deploy/kubernetes/build --chart");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let text = std::fs::read_to_string(root("deploy/kubernetes/chart/Chart.yaml")).unwrap();
    let chart: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&env!("CARGO_PKG_VERSION").into(), &env!("CARGO_PKG_VERSION").into())
    );
    assert_eq!(chart["kubeVersion"], format!(">={}.0-0", VERSIONS[0]));
}

#[test]
fn the_schemas_of_kubernetes_accept_the_manifests() {
    let Some(python) = python_with("kubernetes_validate") else { return };
    let all = ["nvidia", "perf", "dashboards"];
    let tree = tree(&[("privileged", "enforce", &["privileged"]), ("all", "enforce", &all)]);
    // One process for all: its import takes a second.
    let check = "import sys, yaml, kubernetes_validate as k\n\
                 for path in sys.argv[2:]:\n    for each in yaml.safe_load_all(open(path)):\n        \
                 for version in sys.argv[1].split(','):\n            k.validate(each, version, strict=True)\n";
    let mut paths = Vec::new();
    for overlay in ["observe", "enforce", "privileged", "all"] {
        let Some(text) = kustomize(tree.path(), overlay) else { return };
        let path = tree.path().join(format!("{overlay}.yaml"));
        std::fs::write(&path, text).unwrap();
        paths.push(path);
    }
    let run = |paths: &[PathBuf]| {
        program(&python).args(["-c", check, &VERSIONS.join(",")]).args(paths).output().unwrap()
    };
    let done = run(&paths);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // A key that does not exist is refused, so the schemas are really applied.
    let wrong = tree.path().join("wrong.yaml");
    let text = std::fs::read_to_string(&paths[0]).unwrap().replace("hostPID:", "hostPid:");
    std::fs::write(&wrong, text).unwrap();
    assert!(!run(&[wrong]).status.success());
}

#[test]
fn the_plugin_of_node_problem_detector_calls_the_check() {
    let text =
        std::fs::read_to_string(root("deploy/kubernetes/node-problem-detector/memwarden-monitor.json"))
            .unwrap();
    let plugin: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plugin["plugin"], "custom");
    let conditions: BTreeSet<&str> =
        plugin["conditions"].as_array().unwrap().iter().map(|each| each["type"].as_str().unwrap()).collect();
    let rules = plugin["rules"].as_array().unwrap();
    assert!(!rules.is_empty());
    for rule in rules {
        assert!(conditions.contains(rule["condition"].as_str().unwrap()));
        assert!(rule["path"].as_str().unwrap().ends_with("/memwarden"));
        assert_eq!(rule["args"][0], "check");
    }
}
