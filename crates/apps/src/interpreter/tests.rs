//! Which interpreter is found in which folder.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// A folder that is removed with its test.
pub(super) struct TestFolder(PathBuf);

impl TestFolder {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("penstock-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(super) fn remove(&self, name: &str) {
        let path = self.path(name);
        match path.is_dir() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Surroundings {
    pub(super) fn set(&mut self, name: &str, value: PathBuf) {
        let variables = self.variables.get_or_insert_default();
        variables.insert(name.to_owned(), value.into());
    }
}

/// A home folder and a cache in a test's folder, and no variable of this process.
pub(super) fn surroundings(folder: &TestFolder) -> Surroundings {
    let mut around = Surroundings {
        variables: Some(BTreeMap::new()),
        home: Some(folder.path("home")),
    };
    around.set("XDG_CACHE_HOME", folder.path("cache"));
    around.set("PATH", folder.path("bin"));
    around
}

fn find(folder: &TestFolder, kind: AppKind) -> Result<PathBuf, String> {
    let app = App::new("app", folder.path("app"), kind, "app");
    find_interpreter_in(&app, &surroundings(folder))
}

#[test]
fn an_environment_whose_interpreter_is_gone_is_an_error() {
    let folder = TestFolder::new("dangling");
    folder.write("bin/python3", "");
    folder.write("app/requirements.txt", "flask\n");
    assert_eq!(find(&folder, AppKind::Wsgi), Ok(folder.path("bin/python3")));
    folder.write("app/.venv/pyvenv.cfg", "");
    let error = find(&folder, AppKind::Wsgi).unwrap_err();
    assert!(
        error.contains("app/.venv has no bin/python: make the"),
        "{error}"
    );
    let bin = folder.path("app/.venv/bin");
    std::fs::create_dir_all(&bin).unwrap();
    symlink("/no/such/python3.9", bin.join("python3")).unwrap();
    symlink("python3", bin.join("python")).unwrap();
    let error = find(&folder, AppKind::Wsgi).unwrap_err();
    let env = folder.path("app/.venv");
    let env = env.display();
    let expected = format!(
        "{env}/bin/python leads to /no/such/python3.9, which does not exist: make the environment \
         again: python3 -m venv --clear {env} && {env}/bin/pip install -r requirements.txt"
    );
    assert_eq!(error, expected);
}

#[test]
fn a_version_that_a_file_names_is_the_managers() {
    let folder = TestFolder::new("versions");
    folder.write("bin/python3", "");
    folder.write("bin/ruby", "");
    folder.write("app/.python-version", "3.11\n");
    folder.write("app/.ruby-version", "ruby-3.2.2\n");
    // Without a version manager the files are another tool's.
    assert_eq!(find(&folder, AppKind::Wsgi), Ok(folder.path("bin/python3")));
    assert_eq!(find(&folder, AppKind::Rack), Ok(folder.path("bin/ruby")));
    for version in ["3.11.2", "3.11.10", "3.12.1"] {
        folder.write(&format!("home/.pyenv/versions/{version}/bin/python"), "");
    }
    folder.write("home/.rbenv/versions/3.2.2/bin/ruby", "");
    let python = folder.path("home/.pyenv/versions/3.11.10/bin/python");
    assert_eq!(find(&folder, AppKind::Wsgi), Ok(python));
    let ruby = folder.path("home/.rbenv/versions/3.2.2/bin/ruby");
    assert_eq!(find(&folder, AppKind::Rack), Ok(ruby));
    folder.write("app/.ruby-version", "3.4.1\n");
    let error = find(&folder, AppKind::Rack).unwrap_err();
    let end = "asks for 3.4.1, which is not installed: rbenv install 3.4.1";
    assert!(error.ends_with(end), "{error}");
    folder.remove("app/.ruby-version");
    folder.write("app/.tool-versions", "nodejs 20\nruby 3.2.2\n");
    let ruby = folder.path("home/.rbenv/versions/3.2.2/bin/ruby");
    assert_eq!(find(&folder, AppKind::Rack), Ok(ruby));
}

#[test]
fn an_old_interpreter_is_refused_with_its_version() {
    let folder = TestFolder::new("old");
    folder.write("app/.venv/bin/python", "");
    for (config, expected) in [
        ("version = 3.8.10\n", None),
        (
            "version = 3.7.16\n",
            Some("Python 3.7.16, and Python 3.8 or newer"),
        ),
        (
            "version_info = 3.6.15.final.0\n",
            Some("Python 3.6.15, and"),
        ),
        ("version_info = 3.13.0\n", None),
    ] {
        folder.write("app/.venv/pyvenv.cfg", config);
        match (find(&folder, AppKind::Asgi), expected) {
            (Ok(_), None) => {}
            (Err(error), Some(words)) => assert!(error.contains(words), "{error}"),
            (found, _) => panic!("{config}: {found:?}"),
        }
    }
    folder.write("home/.rbenv/versions/2.6.10/bin/ruby", "");
    folder.write("app/.ruby-version", "2.6\n");
    let error = find(&folder, AppKind::Rack).unwrap_err();
    assert!(
        error.ends_with("is Ruby 2.6.10, and Ruby 2.7 or newer is needed"),
        "{error}"
    );
}

#[test]
fn names_the_version_of_a_program() {
    let folder = TestFolder::new("named");
    for (program, expected) in [
        ("usr/bin/python3.11", Some("3.11")),
        ("usr/bin/ruby3.1", Some("3.1")),
        ("versions/3.12.1/bin/python3", Some("3.12.1")),
        ("rubies/ruby-3.2.2/bin/ruby", Some("3.2.2")),
        ("usr/bin/python3", None),
    ] {
        folder.write(program, "");
        let found = describe_version(&folder.path(program));
        assert_eq!(found.as_deref(), expected, "{program}");
    }
}

#[test]
fn a_shim_stands_for_the_version_that_is_everyones() {
    let folder = TestFolder::new("shims");
    let app = App::new("app", folder.path("app"), AppKind::Wsgi, "app");
    let mut around = surroundings(&folder);
    around.set("PATH", folder.path("home/.pyenv/shims"));
    folder.write("home/.pyenv/shims/python3", "");
    let found = |around: &Surroundings| find_interpreter_in(&app, around);
    assert_eq!(found(&around), Ok(folder.path("home/.pyenv/shims/python3")));
    for version in ["3.11.7", "3.12.1"] {
        folder.write(&format!("home/.pyenv/versions/{version}/bin/python3"), "");
    }
    folder.write("home/.pyenv/version", "3.11.7\n3.12.1\n");
    let real =
        |version: &str| Ok(folder.path(&format!("home/.pyenv/versions/{version}/bin/python3")));
    assert_eq!(found(&around), real("3.11.7"));
    around.set("PYENV_VERSION", PathBuf::from("3.12"));
    assert_eq!(found(&around), real("3.12.1"));
}

#[test]
fn a_project_without_its_environment_is_told_how_to_make_it() {
    let folder = TestFolder::new("no-environment");
    let around = surroundings(&folder);
    let app = App::new("app", folder.path("app"), AppKind::Wsgi, "app");
    folder.write("app/app.py", "");
    assert_eq!(missing_environment_in(&app, &around), None);
    folder.write("app/uv.lock", "");
    let hint = missing_environment_in(&app, &around).unwrap();
    assert_eq!(
        hint,
        "no environment of uv.lock was found: to make it, run uv sync"
    );
    folder.write("app/.venv/bin/python", "");
    assert_eq!(missing_environment_in(&app, &around), None);
}

#[test]
fn a_missing_package_without_an_environment_is_explained() {
    const REPORT: &str = "Traceback (most recent call last):\n  File \"/srv/app.py\", line 1\n\
                          ModuleNotFoundError: No module named 'flask.json'\n";
    let folder = TestFolder::new("no-packages");
    let around = surroundings(&folder);
    let app = App::new("app", folder.path("app"), AppKind::Wsgi, "main:app");
    folder.write("app/main.py", "import flask");
    let hint = |report: &str| missing_packages_hint_in(&app, report, &around);
    let ends_with = |expected: &str| {
        let text = hint(REPORT).unwrap();
        assert!(text.ends_with(expected), "{text}");
    };
    ends_with("run python3 -m venv .venv && .venv/bin/pip install PACKAGES");
    folder.write("app/pyproject.toml", "");
    ends_with("run python3 -m venv .venv && .venv/bin/pip install -e .");
    folder.write("app/requirements.txt", "flask\n");
    ends_with("run python3 -m venv .venv && .venv/bin/pip install -r requirements.txt");
    folder.write("app/uv.lock", "");
    ends_with("run uv sync");
    assert_eq!(hint("ImportError: cannot import name 'a'"), None);
    let own = "ModuleNotFoundError: No module named 'main'";
    assert_eq!(hint(own), None);
    folder.write("app/.venv/bin/python", "");
    assert_eq!(hint(REPORT), None);
}

#[test]
fn programs_beside_an_application_find_its_interpreter_first() {
    let folder = TestFolder::new("beside");
    folder.write("bin/python3", "");
    folder.write("app/.venv/bin/python", "");
    folder.write("app/.venv/pyvenv.cfg", "");
    let around = surroundings(&folder);
    let of = |kind: AppKind| {
        let app = App::new("app", folder.path("app"), kind, "app");
        environment::program_environment_in(&app, false, &around)
    };
    let text = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let path = format!("{}:{}", text("app/.venv/bin"), text("bin"));
    for kind in [AppKind::Wsgi, AppKind::Command, AppKind::Job] {
        let found = of(kind);
        assert_eq!(found["PATH"], path, "{kind}");
        assert_eq!(found["VIRTUAL_ENV"], text("app/.venv"), "{kind}");
        assert!(!found.contains_key("RACK_ENV"));
    }
    // What is found by PATH alone changes nothing.
    folder.remove("app/.venv");
    assert!(of(AppKind::Wsgi).is_empty());
    folder.write("bin/ruby", "");
    let ruby = of(AppKind::Rack);
    assert!(ruby.contains_key("RACK_ENV") && !ruby.contains_key("PATH"));
}
