//! Limits as they are written, and missing controllers: plain directories stand in for the kernel.

use super::*;

fn plan(name: &str) -> AppCgroupLimits {
    AppCgroupLimits {
        name: name.to_owned(),
        account: None,
        max_tasks: Some(64),
        max_memory: Some(64 << 20),
        max_cpu: Some(0.5),
        weight: 2,
    }
}

/// A directory in which the files of a cgroup are plain ones.
struct Fake(PathBuf);

impl Fake {
    fn new(name: &str) -> Self {
        let name = format!("penstock-groups-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// A cgroup with every file that is written to.
    fn folder(&self, version: CgroupVersion, files: &[&str]) -> Folder {
        for file in files {
            std::fs::write(self.0.join(file), "").unwrap();
        }
        Folder {
            path: self.0.clone(),
            version,
            controllers: Controller::ALL.to_vec(),
        }
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn bounds_are_written_as_version_1_wants_them() {
    let fake = Fake::new("v1");
    let files = [
        "pids.max",
        "memory.limit_in_bytes",
        "cpu.shares",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
    ];
    // No file for swap: the kernel does not count it.
    fake.folder(CgroupVersion::V1, &files)
        .bound(&plan("a"))
        .unwrap();
    let written = files.map(|file| fake.text(file));
    assert_eq!(written, ["64", "67108864", "2048", "100000", "50000"]);
}

#[test]
fn bounds_are_written_as_version_2_wants_them() {
    let fake = Fake::new("v2");
    let files = [
        "pids.max",
        "memory.max",
        "memory.swap.max",
        "cpu.weight",
        "cpu.max",
    ];
    fake.folder(CgroupVersion::V2, &files)
        .bound(&plan("a"))
        .unwrap();
    let written = files.map(|file| fake.text(file));
    assert_eq!(written, ["64", "67108864", "0", "200", "50000 100000"]);
}

#[test]
fn what_is_not_bounded_is_left_as_it_is() {
    let fake = Fake::new("none");
    let folder = fake.folder(CgroupVersion::V2, &["cpu.weight"]);
    let free = AppCgroupLimits {
        max_tasks: None,
        max_memory: None,
        max_cpu: None,
        ..plan("a")
    };
    folder.bound(&free).unwrap();
    assert!(folder.bound(&plan("a")).is_err(), "no such controller");
}

impl Fake {
    fn parent(&self, controllers: &[Controller]) -> Parent {
        Parent {
            path: self.0.clone(),
            version: CgroupVersion::V2,
            controllers: controllers.to_vec(),
        }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn a_server_moves_to_a_child_before_others_get_controllers() {
    let fake = Fake::new("child");
    let mut parent = fake.parent(&[Controller::Tasks]);
    for file in ["cgroup.subtree_control", "penstock-server/cgroup.procs"] {
        fake.write(file, "");
    }
    fake.write("penstock-server/cpu.weight", "");
    assert!(parent.enter_child(3, None).is_empty());
    assert_eq!(fake.text("penstock-server/cgroup.procs"), "0");
    assert_eq!(fake.text("cgroup.subtree_control"), "+pids");
    assert_eq!(fake.text("penstock-server/cpu.weight"), "300");
    // If the file cannot be written, the process moves back.
    let fake = Fake::new("back");
    let mut parent = fake.parent(&[Controller::Tasks, Controller::Memory]);
    fake.write("penstock-server/cgroup.procs", "");
    fake.write("cgroup.procs", "");
    let missing = parent.enter_child(3, None);
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(missing[0].reason.contains("Delegate=yes"), "{missing:?}");
    assert!(parent.controllers.is_empty());
    assert_eq!(fake.text("cgroup.procs"), "0");
}

#[test]
fn a_cgroup_with_other_programs_gives_its_children_nothing_new() {
    let fake = Fake::new("occupied");
    let parent = fake.parent(&[Controller::Tasks, Controller::Memory]);
    let us = getpid().as_raw_nonzero();
    let lost = |parent: &Parent| -> Vec<Controller> {
        let missing = parent.occupied();
        missing.iter().map(|it| it.controller).collect()
    };
    fake.write("cgroup.type", "domain");
    fake.write("cgroup.procs", &format!("{us}\n"));
    assert!(lost(&parent).is_empty(), "it is alone");
    // One of them is of another namespace.
    fake.write("cgroup.procs", &format!("0\n{us}\n"));
    assert_eq!(lost(&parent), [Controller::Tasks, Controller::Memory]);
    fake.write("cgroup.subtree_control", "pids cpu\n");
    assert_eq!(lost(&parent), [Controller::Memory], "what is there stays");
    // The root of all may have both.
    std::fs::remove_file(fake.0.join("cgroup.type")).unwrap();
    assert!(lost(&parent).is_empty());
}

#[test]
fn without_plans_nothing_is_made_or_missed() {
    let groups = ServerCgroups::make(&[], 1, false);
    assert!(groups.iter().next().is_none() && groups.missing().is_empty());
    assert!(ServerCgroups::find_missing_controllers(&[]).is_empty());
}

#[test]
fn only_what_somebody_asked_for_is_missed() {
    let missing = Controller::ALL.map(|it| missed(it, "no rights")).to_vec();
    let only_memory = AppCgroupLimits {
        max_tasks: None,
        max_cpu: None,
        ..plan("a")
    };
    let told = needed_controllers(missing, &[only_memory]);
    let told: Vec<_> = told.iter().map(|it| it.controller).collect();
    assert_eq!(told, [Controller::Memory]);
}

#[test]
fn a_process_that_waits_for_the_server_moves_with_it() {
    let fake = Fake::new("companion");
    let mut parent = fake.parent(&[Controller::Tasks]);
    for file in ["cgroup.subtree_control", "penstock-server/cgroup.procs"] {
        fake.write(file, "");
    }
    let waiting = Pid::from_raw(4321);
    assert!(parent.enter_child(3, waiting).is_empty());
    // The last value written.
    assert_eq!(fake.text("penstock-server/cgroup.procs"), "4321");
}

#[test]
fn a_cgroup_cannot_be_opened_by_others() {
    use std::os::unix::fs::PermissionsExt;
    let fake = Fake::new("mode");
    let path = fake.0.join("penstock-1-0-shop");
    for _ in 0..2 {
        make_folder(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o711);
        // One that an older server left.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn only_cgroups_of_applications_are_taken_for_abandoned() {
    for name in ["penstock-12-0-shop", "penstock-1-10-", "penstock-7-3-a-b"] {
        assert!(is_of_an_application(name), "{name}");
    }
    for name in [
        "penstock-server",
        "penstock-12",
        "penstock-12-shop",
        "penstock-2nd-0-shop",
        "penstock-12-0",
        "penstock--0-shop",
        "other-12-0-shop",
    ] {
        assert!(!is_of_an_application(name), "{name}");
    }
    let fake = Fake::new("abandoned");
    for name in [
        "penstock-999999-0-shop",
        "penstock-9lives",
        "penstock-server",
    ] {
        std::fs::create_dir(fake.0.join(name)).unwrap();
    }
    fake.parent(&[]).remove_abandoned();
    let left = std::fs::read_dir(&fake.0).unwrap();
    let mut left: Vec<_> = left.map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["penstock-9lives", "penstock-server"]);
}
