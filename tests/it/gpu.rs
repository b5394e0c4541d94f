//! The `gpu` source with its real worker process, on the fake NVML.

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use memwarden::host::child::WorkerCommand;
    use memwarden::host::clock;
    use memwarden::host::roots::Roots;
    use memwarden::model::facts::{Facts, KernelXid};
    use memwarden::model::point::{Batch, Family};
    use memwarden::model::setting::{Settings, Value};
    use memwarden::model::source::{Control, Source, SourceError};
    use memwarden::sources::Context;
    use memwarden::sources::gpu::REGISTRATION;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A node whose GPUs are what a scenario says.
    struct Node {
        // Dropped first: its worker reads the folder.
        source: Box<dyn Source>,
        folder: tempfile::TempDir,
        settings: Settings,
        context: Context,
        families: Vec<Family>,
        facts: Facts,
        outcome: Result<(), SourceError>,
        /// The shortest time of a sample: a busy machine delays some, and a wait for the worker each.
        fastest: Duration,
    }

    impl Drop for Node {
        fn drop(&mut self) {
            assert!(
                std::thread::panicking() || self.fastest < Duration::from_millis(100),
                "the sampler waits"
            );
        }
    }

    impl Node {
        fn new(scenario: &str) -> Self {
            Self::with(crate::harness::fake_nvml(), scenario)
        }

        fn with(library: PathBuf, scenario: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("scenario.json");
            std::fs::write(&file, scenario).unwrap();
            let mut settings = Settings::default();
            settings.set("nvml_library", Value::Path(library));
            settings.set("interval", Value::Duration(Duration::from_millis(200)));
            let variable = format!("FAKE_NVML_SCENARIO={}", file.display());
            let arguments =
                vec![variable.into(), env!("CARGO_BIN_EXE_memwarden").into(), "gpu-worker".into()];
            let context = Context {
                roots: Arc::new(Roots::under(folder.path())),
                worker: Some(WorkerCommand { program: "/usr/bin/env".into(), arguments }),
                checkpoints: Arc::default(),
                past_runs: Arc::default(),
            };
            let source = (REGISTRATION.build)(&settings, &context);
            let (families, facts, outcome) = (Vec::new(), Facts::default(), Ok(()));
            let fastest = Duration::MAX;
            Self { folder, source, settings, context, families, facts, outcome, fastest }
        }

        /// Applies a reload of a source whose section has changed.
        fn rebuild(&mut self) {
            let begun = clock::now();
            self.source = (REGISTRATION.build)(&self.settings, &self.context);
            assert!(clock::now().since(begun) < Duration::from_secs(5), "the reload waits");
        }

        fn change(&self, scenario: &str) {
            let next = self.folder.path().join("next.json");
            std::fs::write(&next, scenario).unwrap();
            std::fs::rename(next, self.folder.path().join("scenario.json")).unwrap();
        }

        fn tick(&mut self, kernel_xids: Vec<KernelXid>) {
            let mut batch = Batch::new();
            batch.facts.kernel_xids = kernel_xids;
            let begun = clock::now();
            self.outcome = self.source.sample(begun, &mut batch);
            self.fastest = self.fastest.min(clock::now().since(begun));
            let (families, dropped, facts) = batch.seal();
            assert!(dropped.is_empty(), "{dropped:?}");
            (self.families, self.facts) = (families, facts);
        }

        fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
            let family = self.families.iter().find(|family| family.desc.name == name)?;
            let place = |label| family.desc.labels.iter().position(|known| *known == label).unwrap();
            let matches = |point: &&memwarden::model::point::Point| {
                labels.iter().all(|(label, value)| point.labels[place(*label)].as_str() == *value)
            };
            family.points.iter().find(matches).map(|point| point.value)
        }

        /// Ticks until a condition holds.
        #[track_caller]
        fn until(&mut self, what: impl Fn(&Self) -> bool) {
            let begun = clock::now();
            loop {
                self.tick(Vec::new());
                if what(self) {
                    return;
                }
                assert!(clock::now().since(begun) < PATIENCE, "it never came; {:?}", self.outcome);
                std::thread::sleep(Duration::from_millis(50));
            }
        }

        fn nvml_is(&self, status: &str) -> bool {
            self.value("memwarden_nvml_status", &[("status", status)]) == Some(1.0)
        }

        fn gpu_is(&self, gpu: &str, status: &str) -> bool {
            self.value("memwarden_gpu_status", &[("gpu", gpu), ("status", status)]) == Some(1.0)
        }

        fn xids(&self, xid: &str) -> Option<f64> {
            self.value("memwarden_gpu_xid_errors_total", &[("gpu", "0"), ("xid", xid)])
        }

        /// The workers' pids: the processes that have the scenario of this test in their environment.
        fn workers(&self) -> Vec<rustix::process::Pid> {
            let wanted = self.folder.path().to_str().unwrap().as_bytes().to_vec();
            let pids = std::fs::read_dir("/proc").unwrap().flatten();
            pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
                .filter(|pid| {
                    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                    environment.windows(wanted.len()).any(|window| window == wanted)
                })
                .filter_map(rustix::process::Pid::from_raw)
                .collect()
        }

        fn worker(&self) -> rustix::process::Pid {
            self.workers()[0]
        }

        fn signal(&self, signal: rustix::process::Signal) {
            rustix::process::kill_process(self.worker(), signal).unwrap();
        }
    }

    const TWO: &str = r#"{"devices": [{"utilization": 50, "processes": [
        {"pid": 11, "memory": 1073741824, "sm": 40, "mem": 1}, {"pid": 12, "memory": 1024, "type": "graphics"}]},
        {"pcie": {"tx_bytes": 7}}]}"#;
    const ONE_HANGS: &str = r#"{"devices": [{"hang": ["*"]}, {"utilization": 9}]}"#;
    const ONE_LOST: &str = r#"{"devices": [{"state": "lost"}, {"utilization": 9}]}"#;

    #[test]
    fn healthy_gpus_have_all_values() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok") && node.gpu_is("1", "ok"));
        assert!(node.outcome.is_ok(), "{:?}", node.outcome);
        let gpu = [("gpu", "0")];
        assert_eq!(node.value("memwarden_gpu_utilization_ratio", &gpu), Some(0.5));
        assert_eq!(node.value("memwarden_gpu_memory_used_bytes", &gpu), Some(1_073_742_848.0));
        assert_eq!(node.value("memwarden_gpu_memory_unattributed_bytes", &gpu), Some(0.0));
        assert_eq!(node.value("memwarden_gpu_process_memory_bytes", &[("pid", "12")]), Some(1024.0));
        assert_eq!(node.value("memwarden_gpu_power_watts", &gpu), Some(72.0));
        assert_eq!(node.xids("79"), Some(0.0));
        let pids: Vec<u32> = node.facts.gpu_processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [11, 12]);
        node.until(|node| {
            node.value("memwarden_gpu_process_sm_utilization_ratio", &[("pid", "11")]) == Some(0.4)
        });
    }

    /// Of peaks of 100 ms, one each second on each of 8 GPUs, samples each 2 s see 12 in the time that is waited.
    #[test]
    fn short_peaks_of_memory_are_seen_between_samples() {
        let gpu = |seed: u32| {
            format!(
                r#"{{"memory": {{"used": {{"peaks": {{"low": 1e9, "high": 6e10, "step": 1e6,
                "length_s": 0.1, "period_s": 1, "seed": {seed}}}}}}}}}"#
            )
        };
        let devices: Vec<String> = (0..8).map(gpu).collect();
        let mut node = Node::new(&format!(r#"{{"devices": [{}]}}"#, devices.join(",")));
        node.settings.set("interval", Value::Duration(Duration::from_secs(2)));
        node.rebuild();
        let begun = clock::now();
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 30 {
            assert!(clock::now().since(begun) < PATIENCE, "only {} peaks were seen", seen.len());
            node.tick(Vec::new());
            for gpu in 0..8 {
                let gpu = gpu.to_string();
                let peak = node.value("memwarden_gpu_memory_used_peak_bytes", &[("gpu", &gpu)]);
                // Each peak of a GPU has its own height.
                seen.extend(peak.filter(|peak| *peak > 2e9).map(|peak| (gpu, peak.to_bits())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let polls = |node: &Node| node.value("memwarden_gpu_memory_polls_total", &[("gpu", "0")]);
        assert!(polls(&node).is_some_and(|polls| polls > 0.0));
        node.settings.set("memory_peaks", Value::Bool(false));
        node.rebuild();
        node.until(|node| node.gpu_is("0", "ok") && polls(node).is_none());
    }

    #[test]
    fn a_hung_gpu_delays_no_other_and_recovers() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok") && node.gpu_is("1", "ok"));
        node.change(ONE_HANGS);
        node.until(|node| node.gpu_is("0", "hung"));
        assert!(node.gpu_is("1", "ok"));
        assert!(node.value("memwarden_gpu_sample_age_seconds", &[("gpu", "0")]).unwrap() > 2.9);
        assert!(node.value("memwarden_gpu_sample_age_seconds", &[("gpu", "1")]).unwrap() < 2.9);
        assert_eq!(node.value("memwarden_gpu_power_watts", &[("gpu", "0")]), None);
        assert_eq!(node.value("memwarden_gpu_utilization_ratio", &[("gpu", "1")]), Some(0.09));
        assert_eq!(node.xids("79"), Some(0.0));
        // The memory of the other is read between samples by another thread than the one that hangs.
        let polls = |node: &Node, gpu: &str| node.value("memwarden_gpu_memory_polls_total", &[("gpu", gpu)]);
        let before = polls(&node, "1").unwrap_or(0.0);
        node.until(|node| polls(node, "1").is_some_and(|polls| polls > before + 40.0));
        let hung = polls(&node, "0");
        assert_eq!(node.value("memwarden_gpu_worker_restarts_total", &[]), Some(0.0));
        node.change(TWO);
        node.until(|node| node.gpu_is("0", "ok") && node.outcome.is_ok());
        node.until(|node| polls(node, "0") > hung);
    }

    #[test]
    fn a_gpu_that_hangs_from_the_start_is_named() {
        let mut node = Node::new(ONE_HANGS);
        node.until(|node| node.gpu_is("0", "hung") && node.gpu_is("1", "ok"));
    }

    #[test]
    fn the_call_that_hangs_is_named() {
        let mut node = Node::new(TWO);
        for function in [
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetProcessUtilization",
            "nvmlDeviceGetMigMode",
        ] {
            node.until(|node| node.gpu_is("0", "ok") && node.outcome.is_ok());
            node.change(&format!(r#"{{"devices": [{{"hang": ["{function}"]}}, {{"utilization": 9}}]}}"#));
            let labels = [("gpu", "0"), ("call", function)];
            node.until(|node| node.value("memwarden_gpu_hung_call_info", &labels) == Some(1.0));
            let outcome = format!("{:?}", node.outcome);
            assert!(outcome.contains(&format!("GPU 0: hung in {function}")), "{outcome}");
            node.change(TWO);
        }
        node.until(|node| node.gpu_is("0", "ok"));
        assert_eq!(node.value("memwarden_gpu_hung_call_info", &[]), None);
    }

    #[test]
    fn processes_are_listed_with_every_layout_of_a_driver() {
        let processes: Vec<_> =
            (1001..=1040).map(|pid| format!(r#"{{"pid": {pid}, "memory": {}}}"#, pid << 20)).collect();
        let processes = processes.join(", ");
        for (driver, missing) in
            [("535.54.03", &[][..]), ("535.98", &[]), ("495.46", &["_v3"]), ("450.51.06", &["_v3", "_v2"])]
        {
            let list = "nvmlDeviceGetComputeRunningProcesses";
            let returns: Vec<_> = missing.iter().map(|end| format!(r#""{list}{end}": 13"#)).collect();
            let returns = returns.join(", ");
            let mut node = Node::new(&format!(
                r#"{{"driver_version": "{driver}", "devices": [{{"processes": [{processes}], "returns": {{{returns}}}}}]}}"#
            ));
            node.until(|node| node.value("memwarden_gpu_processes", &[]) == Some(40.0));
            for pid in 1001..=1040_u32 {
                let memory = node.value("memwarden_gpu_process_memory_bytes", &[("pid", &pid.to_string())]);
                assert_eq!(memory, Some(f64::from(pid) * 1_048_576.0), "{driver}");
            }
            assert_eq!(node.value("memwarden_gpu_worker_restarts_total", &[]), Some(0.0));
        }
    }

    #[test]
    fn errors_of_links_are_read_by_the_ids_of_the_architecture() {
        for architecture in ["ampere", "hopper"] {
            let mut node = Node::new(&format!(
                r#"{{"devices": [{{"architecture": "{architecture}", "nvlink": {{"links": 4, "errors": {{"replay": 3}}}}}}]}}"#
            ));
            let replays = [("gpu", "0"), ("error", "replay")];
            node.until(|node| node.value("memwarden_gpu_nvlink_errors_total", &replays) == Some(12.0));
        }
        // NVLink 5 counts by link only.
        let mut node = Node::new(
            r#"{"devices": [{"architecture": "blackwell", "nvlink": {"links": 4, "errors": {"recovery": 2, "crc_flit": 5}}}]}"#,
        );
        for (error, count) in [("recovery", 8.0), ("receive", 20.0), ("effective", 20.0)] {
            let labels = [("gpu", "0"), ("error", error)];
            node.until(|node| node.value("memwarden_gpu_nvlink_errors_total", &labels) == Some(count));
        }
    }

    #[test]
    fn a_gpu_without_a_uuid_is_named_by_its_address() {
        let mut node = Node::new(
            r#"{"devices": [{"pci": "00000000:03:00.0", "returns": {"nvmlDeviceGetUUID": "not_supported"}}]}"#,
        );
        let labels = [("gpu", "0"), ("uuid", "pci-0000:03:00.0")];
        node.until(|node| node.value("memwarden_gpu_memory_used_bytes", &labels).is_some());
    }

    #[test]
    fn a_lost_gpu_is_reported_and_may_return() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        node.change(ONE_LOST);
        node.until(|node| node.gpu_is("0", "lost"));
        assert_eq!(node.value("memwarden_gpu_memory_used_bytes", &[("gpu", "0")]), None);
        node.change(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
    }

    #[test]
    fn a_killed_worker_is_started_again() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        // The next ones fail, so that the loss lasts.
        node.change(r#"{"crash_on_init": true}"#);
        node.signal(rustix::process::Signal::KILL);
        node.until(|node| node.nvml_is("worker_failed"));
        assert!(!node.gpu_is("0", "ok"));
        node.change(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        assert!(node.value("memwarden_gpu_worker_restarts_total", &[]) >= Some(1.0));
    }

    #[test]
    fn a_stopped_worker_is_killed_and_started_again() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        // It can load no kernel module, by no program that it starts.
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.worker().as_raw_pid())).unwrap();
        let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
        assert_eq!(of("NoNewPrivs:"), "1");
        assert_eq!(
            u64::from_str_radix(of("CapBnd:"), 16).unwrap() >> 16
                & u64::from(rustix::process::geteuid().is_root()),
            0
        );
        node.signal(rustix::process::Signal::STOP);
        node.until(|node| node.value("memwarden_gpu_worker_up", &[]) == Some(0.0));
        node.until(|node| node.value("memwarden_gpu_worker_restarts_total", &[]) == Some(1.0));
        node.until(|node| node.gpu_is("0", "ok"));
    }

    #[test]
    fn a_worker_that_crashes_on_start_is_retried() {
        let mut node = Node::new(r#"{"crash_on_init": true}"#);
        node.until(|node| node.nvml_is("worker_failed"));
        node.change(TWO);
        node.until(|node| node.nvml_is("ok"));
    }

    #[test]
    fn each_failed_start_has_its_own_status() {
        let statuses = [
            ("driver_not_loaded", 9.0),
            ("no_permission", 4.0),
            ("lib_rm_version_mismatch", 18.0),
            ("77", 77.0),
        ];
        for (code, number) in statuses {
            let quoted = if code.parse::<u32>().is_ok() { code.to_owned() } else { format!("\"{code}\"") };
            let mut node = Node::new(&format!("{{\"init\": {quoted}}}"));
            let status = match code {
                "lib_rm_version_mismatch" => "version_mismatch",
                "77" => "unknown_error",
                same => same,
            };
            node.until(|node| node.nvml_is(status));
            assert_eq!(node.value("memwarden_nvml_return_code", &[]), Some(number));
            assert!(matches!(node.outcome, Err(SourceError::Failed { .. })), "{:?}", node.outcome);
        }
    }

    #[test]
    fn unsupported_and_unknown_values_are_reported() {
        let scenario = r#"{"devices": [{"memory": null, "returns": {"nvmlDeviceGetPowerUsage": 4242,
            "nvmlDeviceGetTemperature": "no_permission"}, "churn": {"grow_between_calls": 8, "limit": 16},
            "processes": [{"pid": 5, "memory": null}]}]}"#;
        let mut node = Node::new(scenario);
        node.until(|node| node.gpu_is("0", "ok"));
        let status = |field: &str, status: &str, code: &str| {
            let labels = [("field", field), ("status", status), ("code", code)];
            node.value("memwarden_gpu_field_status", &labels)
        };
        assert_eq!(status("memory_used", "unsupported", "3"), Some(1.0));
        assert_eq!(status("power", "unknown_code", "4242"), Some(1.0));
        assert_eq!(status("temperature", "permission", "4"), Some(1.0));
        assert_eq!(node.value("memwarden_gpu_memory_used_bytes", &[]), None);
        assert_eq!(node.value("memwarden_gpu_memory_unattributed_bytes", &[]), None);
        assert_eq!(node.value("memwarden_gpu_process_memory_bytes", &[("pid", "5")]), None);
        node.until(|node| node.value("memwarden_gpu_processes", &[]) == Some(17.0));
    }

    #[test]
    fn activity_is_read_from_the_second_sample_on_where_the_gpu_has_gpm() {
        let scenario = r#"{"devices": [
            {"gpm": {"1": 97.5, "2": 61.25, "3": 101, "5": 43, "10": 12, "20": 1.5, "61": 7}}, {}]}"#;
        let mut node = Node::new(scenario);
        let sm = |node: &Node| node.value("memwarden_gpu_sm_activity_ratio", &[("gpu", "0")]);
        node.until(|node| sm(node).is_some());
        assert_eq!(sm(&node), Some(0.6125));
        assert_eq!(node.value("memwarden_gpu_engine_activity_ratio", &[("gpu", "0")]), Some(0.975));
        let pipe = |pipe| node.value("memwarden_gpu_pipe_activity_ratio", &[("pipe", pipe)]);
        assert_eq!((pipe("tensor"), pipe("fp64")), (Some(0.43), None));
        assert_eq!(node.value("memwarden_gpu_dram_activity_ratio", &[]), Some(0.12));
        let sent = [("direction", "sent")];
        let pcie = node.value("memwarden_gpu_pcie_traffic_bytes_per_second", &sent);
        assert_eq!(pcie, Some(1_572_864.0));
        let nvlink = node.value("memwarden_gpu_nvlink_traffic_bytes_per_second", &sent);
        assert_eq!(nvlink, Some(7_340_032.0));
        let status = |gpu: &str, field: &str, status: &str| {
            let labels = [("gpu", gpu), ("field", field), ("status", status)];
            node.value("memwarden_gpu_field_status", &labels)
        };
        assert_eq!(node.value("memwarden_gpu_sm_occupancy_ratio", &[]), None, "more than all warps");
        assert_eq!(status("0", "sm_occupancy", "implausible"), Some(1.0));
        assert_eq!(status("0", "fp64_activity", "unsupported"), Some(1.0));
        assert_eq!(status("1", "gpm", "unsupported"), Some(1.0));
        assert_eq!(node.value("memwarden_gpu_sm_activity_ratio", &[("gpu", "1")]), None);
        node.change(
            r#"{"devices": [{"gpm": {"2": 10}, "returns": {"nvmlGpmSampleGet": "no_permission"}}, {}]}"#,
        );
        node.until(|node| sm(node).is_none());
        let refused = [("field", "gpm"), ("status", "permission"), ("gpu", "0")];
        assert_eq!(node.value("memwarden_gpu_field_status", &refused), Some(1.0));
        assert!(node.gpu_is("0", "ok"));
        node.change(scenario);
        node.until(|node| sm(node).is_some());
        node.settings.set("gpm", Value::Bool(false));
        node.rebuild();
        // Of both GPUs: one that has not answered yet keeps its values.
        let gpm = |node: &Node| node.value("memwarden_gpu_field_status", &[("field", "gpm")]);
        node.until(|node| node.gpu_is("0", "ok") && sm(node).is_none() && gpm(node).is_none());
    }

    #[test]
    fn activity_of_a_partitioned_gpu_is_that_of_its_instances() {
        let instance = |place: u32, gi: u32, ci: u32, sm: u32| {
            format!(
                r#"{{"uuid": "MIG-{place}", "gi": {gi}, "ci": {ci}, "multiprocessors": 32,
                "gpm": {{"2": {sm}, "5": 4}}, "memory": {{"total": 1000, "reserved": 10, "used": 90}}}}"#
            )
        };
        let instances = [instance(0, 1, 0, 20), instance(1, 1, 1, 20), instance(2, 5, 0, 70)].join(",");
        let mut node = Node::new(&format!(
            r#"{{"devices": [{{"gpm": {{}}, "mig": {{"enabled": true, "instances": [{instances}]}}}}]}}"#
        ));
        let sm =
            |node: &Node, uuid: &str| node.value("memwarden_gpu_mig_sm_activity_ratio", &[("uuid", uuid)]);
        node.until(|node| sm(node, "MIG-2").is_some());
        let found = ["MIG-0", "MIG-1", "MIG-2"].map(|uuid| sm(&node, uuid));
        assert_eq!(found, [Some(0.2), Some(0.2), Some(0.7)]);
        let tensor = [("uuid", "MIG-0"), ("pipe", "tensor")];
        assert_eq!(node.value("memwarden_gpu_mig_pipe_activity_ratio", &tensor), Some(0.04));
        assert_eq!(node.value("memwarden_gpu_mig_multiprocessors", &[("uuid", "MIG-2")]), Some(32.0));
        let refused = [("uuid", "MIG-0"), ("field", "dram_activity"), ("status", "unsupported")];
        assert_eq!(node.value("memwarden_gpu_field_status", &refused), Some(1.0));
        assert_eq!(node.value("memwarden_gpu_sm_activity_ratio", &[]), None);
    }

    #[test]
    fn each_link_is_exposed_where_it_is_requested() {
        let mut node = Node::new(
            r#"{"devices": [{"nvlink": {"links": 3, "down": [1], "data_tx_kib": 4, "raw_rx_kib": null,
                "errors": {"replay": 6}}}, {"nvlink": null}]}"#,
        );
        let up = |node: &Node, link: &str| {
            node.value("memwarden_gpu_nvlink_link_active", &[("gpu", "0"), ("link", link)])
        };
        node.until(|node| node.gpu_is("0", "ok"));
        assert_eq!(up(&node, "0"), None);
        assert_eq!(node.value("memwarden_gpu_nvlink_active_links", &[("gpu", "0")]), Some(2.0));
        node.settings.set("nvlink_links", Value::Bool(true));
        node.rebuild();
        node.until(|node| up(node, "0").is_some());
        assert_eq!([up(&node, "1"), up(&node, "2"), up(&node, "3")], [Some(0.0), Some(1.0), None]);
        let of = |name: &str, label: (&str, &str)| {
            let all = [("gpu", "0"), ("link", "2"), label];
            node.value(&format!("memwarden_gpu_nvlink_link_{name}"), &all)
        };
        assert_eq!(of("sent_bytes_total", ("traffic", "data")), Some(4096.0));
        assert_eq!(of("received_bytes_total", ("traffic", "raw")), None);
        assert_eq!(of("errors_total", ("error", "replay")), Some(6.0));
        let down = [("gpu", "0"), ("link", "1"), ("traffic", "data")];
        assert_eq!(node.value("memwarden_gpu_nvlink_link_sent_bytes_total", &down), None);
        let refused = [("gpu", "0"), ("field", "nvlink_links"), ("status", "unsupported")];
        assert_eq!(node.value("memwarden_gpu_field_status", &refused), Some(1.0));
        assert_eq!(node.value("memwarden_gpu_nvlink_link_active", &[("gpu", "1")]), None);
        node.change(r#"{"devices": [{"returns": {"nvmlDeviceGetNvLinkState": "no_permission"}}, {}]}"#);
        node.until(|node| up(node, "0").is_none());
        assert!(node.gpu_is("0", "ok"));
    }

    #[test]
    fn spare_rows_virtualization_and_confidential_compute_are_exposed() {
        let mut node = Node::new(
            r#"{"confidential_compute": {"enabled": true, "protected_kib": 3, "unprotected_kib": 1},
            "devices": [{"virtualization": 2, "fields": {"29": 5},
                "remapped_rows": {"histogram": [600, 30, 7, 2, 1]},
                "processes": [{"pid": 4, "memory": 1, "sm": 30, "enc": 12}, {"pid": 5, "memory": 1, "sm": 1}]},
                {"virtualization": null, "remapped_rows": null}]}"#,
        );
        let encoder = |node: &Node, pid: &str| {
            node.value("memwarden_gpu_process_encoder_utilization_ratio", &[("pid", pid)])
        };
        node.until(|node| encoder(node, "4").is_some());
        assert_eq!((encoder(&node, "4"), encoder(&node, "5")), (Some(0.12), None));
        let of = |name: &str, label: (&str, &str)| {
            node.value(&format!("memwarden_gpu_{name}"), &[("gpu", "0"), label])
        };
        let banks = ["max", "high", "partial", "low", "none"]
            .map(|spare_rows| of("row_remap_banks", ("spare_rows", spare_rows)));
        assert_eq!(banks, [600.0, 30.0, 7.0, 2.0, 1.0].map(Some));
        assert_eq!(of("retired_pages", ("cause", "single_bit")), Some(5.0));
        assert_eq!(of("virtualization_info", ("mode", "vgpu")), Some(1.0));
        assert_eq!(of("virtualization_info", ("mode", "none")), None);
        assert_eq!(node.value("memwarden_gpu_confidential_compute_enabled", &[]), Some(1.0));
        assert_eq!(of("confidential_compute_memory_bytes", ("kind", "protected")), Some(3072.0));
        let absent = |field: &str| {
            let labels = [("gpu", "1"), ("field", field), ("status", "unsupported")];
            node.value("memwarden_gpu_field_status", &labels)
        };
        assert_eq!((absent("remap_banks_max"), absent("virtualization_mode")), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn instances_name_their_parent() {
        let scenario = r#"{"devices": [{"uuid": "GPU-p", "mig": {"enabled": true, "instances": [null,
            {"uuid": "MIG-i", "gi": 9, "ci": 0, "memory": {"total": 1000, "reserved": 10, "used": 90}}]}}]}"#;
        let mut node = Node::new(scenario);
        node.until(|node| node.gpu_is("0", "ok"));
        let labels = [("uuid", "MIG-i"), ("gpu_instance", "9"), ("compute_instance", "0")];
        assert_eq!(node.value("memwarden_gpu_mig_memory_used_bytes", &labels), Some(90.0));
        assert_eq!(node.value("memwarden_gpu_mig_info", &[("parent", "GPU-p")]), Some(1.0));
        assert_eq!(node.value("memwarden_gpu_mig_enabled", &[]), Some(1.0));
    }

    #[test]
    fn xids_of_both_sources_count_once() {
        let mut node = Node::new(r#"{"devices": [{"pci": "00000000:3B:00.0"}]}"#);
        node.until(|node| node.gpu_is("0", "ok"));
        assert_eq!(node.xids("31"), Some(0.0));
        node.change(
            r#"{"devices": [{"pci": "00000000:3B:00.0", "xids": [{"xid": 31}, {"xid": 31}, {"xid": 999}]}]}"#,
        );
        node.until(|node| node.xids("31") == Some(2.0) && node.xids("999") == Some(1.0));
        let event = |xid| KernelXid {
            pci: "0000:3b:00".to_owned(),
            xid,
            severity: memwarden::model::xid::severity(xid),
            kernel_us: 0,
        };
        node.tick(vec![event(31), event(79)]);
        assert_eq!(node.xids("31"), Some(2.0));
        assert_eq!(node.xids("79"), Some(1.0));
    }

    #[test]
    fn a_refused_registration_is_retried() {
        let refused = r#"{"devices": [{"returns": {"nvmlDeviceRegisterEvents": 999}}]}"#;
        let mut node = Node::new(refused);
        let labels = [("field", "xids"), ("status", "error")];
        node.until(|node| node.value("memwarden_gpu_field_status", &labels) == Some(1.0));
        node.change(r#"{"devices": [{}]}"#);
        node.until(|node| {
            node.gpu_is("0", "ok") && node.value("memwarden_gpu_field_status", &labels).is_none()
        });
        node.change(r#"{"devices": [{"xids": [{"xid": 31}]}]}"#);
        node.until(|node| node.xids("31") == Some(1.0));
    }

    #[test]
    fn a_hung_wait_for_xids_is_detected() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        node.change(&TWO.replacen('{', r#"{"hang": ["nvmlEventSetWait_v2"], "#, 1));
        node.until(|node| node.gpu_is("0", "hung"));
        node.change(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
    }

    #[test]
    fn release_ends_the_worker_and_acquire_starts_one() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        node.source.control(Control::ReleaseGpu);
        node.until(|node| node.nvml_is("released"));
        assert!(matches!(node.outcome, Err(SourceError::Unavailable { .. })));
        assert_eq!(node.value("memwarden_gpu_status", &[]), None);
        assert_eq!(node.value("memwarden_gpu_worker_up", &[]), Some(0.0));
        node.source.control(Control::AcquireGpu);
        node.until(|node| node.gpu_is("0", "ok"));
    }

    #[test]
    fn a_release_before_the_first_sample_is_kept() {
        let mut node = Node::new(TWO);
        node.source.control(Control::ReleaseGpu);
        node.until(|node| node.nvml_is("released"));
    }

    #[test]
    fn a_reload_does_not_wait_and_keeps_the_state() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        node.signal(rustix::process::Signal::KILL);
        node.until(|node| node.value("memwarden_gpu_worker_restarts_total", &[]) == Some(1.0));
        // A value that only the new worker reports: by then it has registered for XIDs.
        node.change(&TWO.replace("50", "51"));
        node.until(|node| node.value("memwarden_gpu_utilization_ratio", &[("gpu", "0")]) == Some(0.51));
        node.change(&TWO.replacen("\"utilization\"", "\"xids\": [{\"xid\": 31}], \"utilization\"", 1));
        node.until(|node| node.xids("31") == Some(1.0));
        let before = node.worker();
        // A worker that does not exit delays its successor, but not the sampler.
        node.signal(rustix::process::Signal::STOP);
        node.rebuild();
        node.until(|node| {
            let workers = node.workers();
            assert!(workers.len() <= 1, "two workers run");
            !workers.is_empty() && !workers.contains(&before)
        });
        node.until(|node| node.nvml_is("ok") && node.gpu_is("0", "ok"));
        assert_eq!(node.xids("31"), Some(1.0));
        assert_eq!(node.value("memwarden_gpu_worker_restarts_total", &[]), Some(1.0));
    }

    #[test]
    fn a_reloaded_driver_is_found_again() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        node.change(&TWO.replacen('{', "{\"driver_generation\": 1, ", 1));
        node.until(|node| !node.nvml_is("ok"));
        node.until(|node| node.gpu_is("0", "ok") && node.gpu_is("1", "ok"));
        assert_eq!(node.value("memwarden_gpu_worker_restarts_total", &[]), Some(0.0));
    }

    #[test]
    fn indices_that_shift_with_the_driver_lose_no_gpu() {
        let scenario = |generation: u32, uuids: &[&str]| {
            let devices: Vec<String> =
                uuids.iter().map(|uuid| format!("{{\"uuid\": \"GPU-{uuid}\"}}")).collect();
            format!("{{\"driver_generation\": {generation}, \"devices\": [{}]}}", devices.join(", "))
        };
        let mut node = Node::new(&scenario(0, &["a", "b", "c", "d"]));
        node.until(|node| (0..4).all(|gpu| node.gpu_is(&gpu.to_string(), "ok")));
        let has_status = |node: &Node, index: &str, uuid: &str, status: &str| {
            let labels = [("gpu", index), ("uuid", uuid), ("status", status)];
            node.value("memwarden_gpu_status", &labels) == Some(1.0)
        };
        node.change(&scenario(1, &["b", "c", "d"]));
        node.until(|node| {
            [("0", "GPU-b"), ("1", "GPU-c"), ("2", "GPU-d")]
                .iter()
                .all(|(at, who)| has_status(node, at, who, "ok"))
        });
        assert!(has_status(&node, "0", "GPU-a", "lost"));
        node.change(&scenario(2, &["c", "b", "d"]));
        node.until(|node| {
            [("0", "GPU-c"), ("1", "GPU-b"), ("2", "GPU-d")]
                .iter()
                .all(|(at, who)| has_status(node, at, who, "ok"))
        });
        assert!(has_status(&node, "0", "GPU-a", "lost"));
        assert_eq!(node.value("memwarden_gpu_worker_bad_lines_total", &[]), Some(0.0));
    }

    #[test]
    fn a_host_without_the_library_is_a_failure_only_if_it_has_the_driver() {
        let mut node = Node::with("/nowhere/libnvidia-ml.so.1".into(), "");
        node.until(|node| node.nvml_is("library_absent"));
        assert!(matches!(node.outcome, Err(SourceError::Unavailable { .. })), "{:?}", node.outcome);
        std::fs::create_dir_all(node.folder.path().join("proc/driver/nvidia")).unwrap();
        std::fs::write(node.folder.path().join("proc/driver/nvidia/version"), "").unwrap();
        // The driver is searched for at intervals.
        node.until(|node| matches!(node.outcome, Err(SourceError::Failed { .. })));
    }

    #[test]
    fn the_worker_exits_with_its_source_and_reports_its_memory() {
        let mut node = Node::new(TWO);
        node.until(|node| node.gpu_is("0", "ok"));
        let pid = node.worker();
        let statm = std::fs::read(format!("/proc/{}/statm", pid.as_raw_nonzero())).unwrap();
        std::fs::create_dir_all(node.folder.path().join(format!("proc/{}", pid.as_raw_nonzero()))).unwrap();
        std::fs::write(node.folder.path().join(format!("proc/{}/statm", pid.as_raw_nonzero())), statm)
            .unwrap();
        node.until(|node| node.value("memwarden_gpu_worker_resident_memory_bytes", &[]).is_some());
        let resident = node.value("memwarden_gpu_worker_resident_memory_bytes", &[]).unwrap();
        assert!(resident > 1024.0 * 1024.0, "{resident}");
        node.source.finish();
        assert!(rustix::process::test_kill_process(pid).is_err(), "the worker outlived its source");
    }
}
