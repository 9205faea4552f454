//! A CPU quota, as containers and units have one: threads and processes follow it, rounded up.

use std::fs;
use std::path::PathBuf;

use crate::support::{PATIENCE, Site, eventually};

/// A control group with a quota, of either version; removed on drop.
struct CpuQuotaGroup(PathBuf);

impl CpuQuotaGroup {
    /// `None`, with a note, if none can be created.
    fn with_quota(microseconds: u32) -> Option<Self> {
        let name = format!("penstock-test-{}-{microseconds}", std::process::id());
        let v1 = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];
        for top in v1.into_iter().chain(["/sys/fs/cgroup"]) {
            let folder = PathBuf::from(top).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self(folder);
            let set = |file: &str, text: String| fs::write(group.0.join(file), text).is_ok();
            let is_set = set("cpu.cfs_period_us", "100000".to_owned())
                && set("cpu.cfs_quota_us", microseconds.to_string());
            if is_set || set("cpu.max", format!("{microseconds} 100000")) {
                return Some(group);
            }
        }
        eprintln!("left out: no control group with a quota can be made here");
        None
    }
}

impl Drop for CpuQuotaGroup {
    fn drop(&mut self) {
        // Empty once the server's last process was reaped.
        eventually(PATIENCE, "the group is empty", || {
            fs::remove_dir(&self.0).is_ok() || !self.0.exists()
        });
    }
}

#[test]
fn threads_and_processes_follow_a_quota() {
    let available = std::thread::available_parallelism().unwrap().get();
    for (microseconds, expected) in [(20_000, 1), (150_000, 2)] {
        let Some(group) = CpuQuotaGroup::with_quota(microseconds) else {
            return;
        };
        let site = Site::with_app().config(
            "[server]\n[apps.site]\n[[sites]]\n[[sites.routes]]\npath = \"/*\"\napp = \"site\"\n",
        );
        let enter = format!("echo $$ >{}/cgroup.procs", group.0.display());
        let server = site.serve_after(&enter, &[]);
        server.wait_ready("site");
        let expected = expected.min(available);
        assert_eq!(server.workers("site").len(), expected, "{microseconds}");
        let threads = server.metric("penstock_event_loops").unwrap();
        assert_eq!(threads, expected as f64, "{microseconds}");
    }
}
