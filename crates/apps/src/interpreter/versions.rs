//! The version of an interpreter: the one that a project asks its version manager for, and the one
//! that a program is.
//!
//! Used by `interpreter`. Managers keep each version in a folder of its own; none of them is run.

use std::path::{Path, PathBuf};

use super::{Surroundings, list_names, read_small_file};

/// A version manager: the folder with a folder for each version, and the command that adds one.
struct Manager {
    /// The variable that names its root; empty if there is none.
    variable: &'static str,
    /// Its root below the home folder.
    below_home: &'static str,
    /// The versions below its root.
    versions: &'static str,
    /// What the folder of a version begins with.
    prefix: &'static str,
    /// The command that installs a version, but for the number.
    install: &'static str,
}

const PYTHON_MANAGERS: [Manager; 2] = [
    Manager {
        variable: "PYENV_ROOT",
        below_home: ".pyenv",
        versions: "versions",
        prefix: "",
        install: "pyenv install",
    },
    Manager {
        variable: "ASDF_DATA_DIR",
        below_home: ".asdf",
        versions: "installs/python",
        prefix: "",
        install: "asdf install python",
    },
];

const RUBY_MANAGERS: [Manager; 5] = [
    Manager {
        variable: "RBENV_ROOT",
        below_home: ".rbenv",
        versions: "versions",
        prefix: "",
        install: "rbenv install",
    },
    Manager {
        variable: "ASDF_DATA_DIR",
        below_home: ".asdf",
        versions: "installs/ruby",
        prefix: "",
        install: "asdf install ruby",
    },
    Manager {
        variable: "MISE_DATA_DIR",
        below_home: ".local/share/mise",
        versions: "installs/ruby",
        prefix: "",
        install: "mise install ruby",
    },
    Manager {
        variable: "rvm_path",
        below_home: ".rvm",
        versions: "rubies",
        prefix: "ruby-",
        install: "rvm install",
    },
    Manager {
        variable: "",
        below_home: ".rubies",
        versions: "",
        prefix: "ruby-",
        install: "ruby-install ruby",
    },
];

/// The Python that `.python-version` or `.tool-versions` of the folder, or of one above, names.
///
/// # Errors
/// A version manager has other versions only.
pub(super) fn python_by_version(
    dir: &Path,
    around: &Surroundings,
) -> Result<Option<PathBuf>, String> {
    let asked = asked_version(dir, ".python-version", "python");
    find_version(asked, &PYTHON_MANAGERS, ("", "bin/python"), around)
}

/// The Ruby that `.ruby-version` or `.tool-versions` of the folder, or of one above, names.
///
/// # Errors
/// A version manager has other versions only.
pub(super) fn ruby_by_version(
    dir: &Path,
    around: &Surroundings,
) -> Result<Option<PathBuf>, String> {
    let asked = asked_version(dir, ".ruby-version", "ruby");
    find_version(asked, &RUBY_MANAGERS, ("ruby-", "bin/ruby"), around)
}

/// A version that a file asks for.
struct AskedVersion {
    file: PathBuf,
    version: String,
}

/// Folders above the project that may have the file.
const MAX_PARENTS: usize = 4;

fn asked_version(dir: &Path, file: &str, tool: &str) -> Option<AskedVersion> {
    let folders = dir.ancestors().take(1 + MAX_PARENTS);
    folders
        .flat_map(|folder| {
            let own = read_version(&folder.join(file), |line| Some(line.to_owned()));
            let of_tool = |line: &str| Some(line.strip_prefix(tool)?.strip_prefix(' ')?.to_owned());
            own.or_else(|| read_version(&folder.join(".tool-versions"), of_tool))
        })
        .next()
}

/// The first line of a file that `pick` takes, up to the first blank.
fn read_version(file: &Path, pick: impl Fn(&str) -> Option<String>) -> Option<AskedVersion> {
    let text = read_small_file(file)?;
    let lines = text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = lines.find_map(pick)?;
    let version = line.split_whitespace().next()?.to_owned();
    let is_name = !version.contains('/') && version != "system";
    is_name.then(|| AskedVersion {
        file: file.to_owned(),
        version,
    })
}

fn find_version(
    asked: Option<AskedVersion>,
    managers: &[Manager],
    (engine, program): (&str, &str),
    around: &Surroundings,
) -> Result<Option<PathBuf>, String> {
    let Some(asked) = asked else { return Ok(None) };
    let version = asked.version.strip_prefix(engine);
    let version = version.unwrap_or(&asked.version);
    let mut missing = None;
    for manager in managers {
        let Some(folder) = manager.versions_dir(around).filter(|dir| dir.is_dir()) else {
            continue;
        };
        let wanted = format!("{}{version}", manager.prefix);
        if let Some(found) = best_match(&folder, &wanted)
            && found.join(program).exists()
        {
            return Ok(Some(found.join(program)));
        }
        missing.get_or_insert(manager);
    }
    match missing {
        Some(manager) => Err(format!(
            "{} asks for {}, which is not installed: {} {version}",
            asked.file.display(),
            asked.version,
            manager.install
        )),
        None => Ok(None),
    }
}

impl Manager {
    fn versions_dir(&self, around: &Surroundings) -> Option<PathBuf> {
        let named = around.path(self.variable);
        let root = named.or_else(|| Some(around.home.as_ref()?.join(self.below_home)))?;
        Some(root.join(self.versions))
    }
}

/// The interpreter behind a version manager's shim: of the version that is everyone's. The shim
/// itself is a script that starts it, slowly. `None` for any other program.
pub(super) fn behind_shim(program: &Path, around: &Surroundings) -> Option<PathBuf> {
    let root = program.parent()?.parent()?;
    let is_shim = program.parent()?.ends_with("shims");
    let found = read_version(&root.join("version"), |line| Some(line.to_owned()));
    let asked = MANAGER_VARIABLES
        .iter()
        .filter(|(root_name, _)| root.ends_with(root_name))
        .find_map(|(_, variable)| around.text(variable))
        .or_else(|| found.map(|found| found.version))?;
    let real = best_match(&root.join("versions"), &asked)?
        .join("bin")
        .join(program.file_name()?);
    (is_shim && real.exists()).then_some(real)
}

/// By a manager's folder, the variable that names a version.
const MANAGER_VARIABLES: [(&str, &str); 2] =
    [(".pyenv", "PYENV_VERSION"), (".rbenv", "RBENV_VERSION")];

/// The folder of a version: of this name, else the newest of `3.11` or `3`.
fn best_match(folder: &Path, wanted: &str) -> Option<PathBuf> {
    if folder.join(wanted).is_dir() {
        return Some(folder.join(wanted));
    }
    let prefix = format!("{wanted}.");
    let names = list_names(folder).into_iter();
    let mut found: Vec<(Vec<u32>, String)> = names
        .filter(|name| name.starts_with(&prefix))
        .filter_map(|name| Some((version_numbers(&name[prefix.len()..])?, name)))
        .collect();
    found.sort();
    found.pop().map(|(_, name)| folder.join(name))
}

/// The numbers of `3.11.2`; `None` for a text that does not begin with one.
pub(super) fn version_numbers(text: &str) -> Option<Vec<u32>> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let parts = text[..end].split('.').filter(|part| !part.is_empty());
    let numbers: Vec<u32> = parts.map_while(|part| part.parse().ok()).collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// The version of an interpreter, as far as its files show it: of its environment's `pyvenv.cfg`,
/// of its real name (`python3.11`), of its folder (`versions/3.11.7/bin`). Reads at most one file.
#[must_use]
pub fn describe_version(program: &Path) -> Option<String> {
    let env = program.parent()?.parent()?;
    let config = read_small_file(&env.join("pyvenv.cfg"));
    let of_env = config.as_deref().and_then(version_of_env);
    of_env.or_else(|| {
        let real = program.canonicalize().ok()?;
        version_of_name(&real).or_else(|| version_of_folder(&real))
    })
}

/// `version = 3.11.2` of the standard library, `version_info = 3.12.1.final.0` of virtualenv and uv.
fn version_of_env(config: &str) -> Option<String> {
    let value = config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        ["version", "version_info"]
            .contains(&key.trim())
            .then(|| value.trim())
    })?;
    join_numbers(value)
}

fn version_of_name(program: &Path) -> Option<String> {
    let name = program.file_name()?.to_str()?;
    let name = name
        .strip_prefix("python")
        .or_else(|| name.strip_prefix("ruby"))?;
    version_numbers(name)
        .filter(|numbers| numbers.len() > 1)
        .and_then(|_| join_numbers(name))
}

fn version_of_folder(program: &Path) -> Option<String> {
    let folder = program.parent()?.parent()?.file_name()?.to_str()?;
    let number = folder.strip_prefix("ruby-").unwrap_or(folder);
    version_numbers(number)
        .filter(|numbers| numbers.len() > 1)
        .and_then(|_| join_numbers(number))
}

fn join_numbers(text: &str) -> Option<String> {
    let numbers = version_numbers(text)?;
    let words: Vec<String> = numbers.iter().take(3).map(ToString::to_string).collect();
    Some(words.join("."))
}
