use super::*;

fn plan(name: &str) -> GroupPlan {
    GroupPlan {
        name: name.to_owned(),
        account: None,
        max_tasks: Some(64),
        max_memory: Some(64 << 20),
        max_cpu: Some(0.5),
        weight: 2,
    }
}

/// Folders stand in for the kernel: the files of a cgroup are plain there, and a folder with files is
/// busy for nobody.
struct Fake(PathBuf);

impl Fake {
    fn new(name: &str) -> Self {
        let name = format!("penstock-groups-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// A cgroup with every file that is written to.
    fn folder(&self, version: Version, files: &[&str]) -> Folder {
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
    fake.folder(Version::V1, &files).bound(&plan("a")).unwrap();
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
    fake.folder(Version::V2, &files).bound(&plan("a")).unwrap();
    let written = files.map(|file| fake.text(file));
    assert_eq!(written, ["64", "67108864", "0", "200", "50000 100000"]);
}

#[test]
fn what_is_not_bounded_is_left_as_it_is() {
    let fake = Fake::new("none");
    let folder = fake.folder(Version::V2, &["cpu.weight"]);
    let free = GroupPlan {
        max_tasks: None,
        max_memory: None,
        max_cpu: None,
        ..plan("a")
    };
    folder.bound(&free).unwrap();
    assert!(folder.bound(&plan("a")).is_err(), "no such controller");
}

#[test]
fn without_plans_nothing_is_made_or_missed() {
    let groups = Groups::make(&[], 1);
    assert!(groups.iter().next().is_none() && groups.missing().is_empty());
    assert!(Groups::probe(&[]).is_empty());
}

#[test]
fn only_what_somebody_asked_for_is_missed() {
    let missing = Controller::ALL.map(|it| missed(it, "no rights")).to_vec();
    let only_memory = GroupPlan {
        max_tasks: None,
        max_cpu: None,
        ..plan("a")
    };
    let told = of_plans(missing, &[only_memory]);
    let told: Vec<_> = told.iter().map(|it| it.controller).collect();
    assert_eq!(told, [Controller::Memory]);
}
