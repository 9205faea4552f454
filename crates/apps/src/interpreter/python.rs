//! Where a Python project's environment is: beside the code, or where its tool keeps it.
//!
//! Used by `interpreter`. Each tool's own rules for paths are followed; none of the tools is run.
//!
//! # Invariants
//! - The first place with an environment counts. One whose interpreter is gone is an error: another
//!   one would have other packages.
//! - An environment of a folder above is used only if it belongs to the same user as the project,
//!   or to root.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;

use super::{Surroundings, read_small_file};

/// Names of environments beside the code.
const LOCAL_NAMES: [&str; 3] = [".venv", "venv", "env"];

/// How many folders above the project are looked into.
const MAX_PARENTS: usize = 2;

/// An environment that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PythonEnv {
    /// Its folder.
    pub(super) dir: PathBuf,
    /// The command that makes it again.
    pub(super) mend: String,
}

/// The project's environment, and where was looked.
pub(super) fn find_env(dir: &Path, around: &Surroundings) -> (Option<PythonEnv>, Vec<PathBuf>) {
    let mut looked = Vec::new();
    let mend = mend_command(dir);
    let candidates = local_envs(dir, around)
        .chain(active_env(around))
        .chain(parent_envs(dir))
        .chain(poetry_envs(dir, around))
        .chain(pipenv_env(dir, around))
        .chain(conda_envs(dir, around));
    for folder in candidates {
        if is_env(&folder) {
            let mend = mend.replace("{env}", &folder.display().to_string());
            let dir = folder;
            return (Some(PythonEnv { dir, mend }), looked);
        }
        looked.push(folder);
    }
    (None, looked)
}

/// Whether a folder is an environment: it has an interpreter, even a link that leads nowhere.
/// `env` and `venv` may be folders of any kind.
fn is_env(folder: &Path) -> bool {
    folder.join("bin/python").symlink_metadata().is_ok()
        || folder.join("bin/python3").symlink_metadata().is_ok()
        || folder.join("pyvenv.cfg").is_file()
}

/// Files of tools that keep a project's packages in an environment, and the commands that make it.
const TOOL_FILES: [(&str, &str); 4] = [
    ("uv.lock", "uv sync"),
    ("poetry.lock", "poetry install"),
    ("Pipfile", "pipenv install"),
    ("environment.yml", "conda env create -f environment.yml"),
];

/// The file of the tool by which a project has its packages, and the command that installs them.
pub(super) fn tool_of(dir: &Path) -> Option<(&'static str, &'static str)> {
    let mut files = TOOL_FILES.iter().copied();
    files.find(|(name, _)| dir.join(name).is_file())
}

/// The command that makes a project's environment, by the files of its tool; `{env}` stands for the
/// folder.
fn mend_command(dir: &Path) -> String {
    if let Some((_, command)) = tool_of(dir) {
        return command.to_owned();
    }
    let install = install_arguments(dir);
    let install = install.map(|what| format!(" && {{env}}/bin/pip install {what}"));
    format!(
        "python3 -m venv --clear {{env}}{}",
        install.unwrap_or_default()
    )
}

/// The command that makes an environment beside the code, by the files of the project.
pub(super) fn create_command(dir: &Path) -> String {
    if let Some((_, command)) = tool_of(dir) {
        return command.to_owned();
    }
    let install = install_arguments(dir).unwrap_or("PACKAGES");
    format!("python3 -m venv .venv && .venv/bin/pip install {install}")
}

/// How pip is told the packages of a project.
fn install_arguments(dir: &Path) -> Option<&'static str> {
    let has = |name: &str| dir.join(name).is_file();
    match () {
        () if has("requirements.txt") => Some("-r requirements.txt"),
        () if has("pyproject.toml") => Some("-e ."),
        () => None,
    }
}

/// Beside the code: where uv is told to keep it, and the usual names. A file `.venv` names a folder
/// (Pipenv).
fn local_envs<'a>(dir: &'a Path, around: &'a Surroundings) -> impl Iterator<Item = PathBuf> + 'a {
    let uv = around.path("UV_PROJECT_ENVIRONMENT");
    let usual = LOCAL_NAMES.iter().map(|name| dir.join(name));
    let named = named_by_file(dir, around);
    uv.map(|folder| dir.join(folder))
        .into_iter()
        .chain(usual)
        .chain(named)
}

/// What the file `.venv` says: the path of an environment, or its name among Pipenv's.
fn named_by_file(dir: &Path, around: &Surroundings) -> Option<PathBuf> {
    let text = read_small_file(&dir.join(".venv"))?;
    let text = text.trim();
    match text.contains('/') {
        true => Some(dir.join(text)),
        false if !text.is_empty() => Some(pipenv_home(around)?.join(text)),
        false => None,
    }
}

/// The environment that the shell has activated.
fn active_env(around: &Surroundings) -> Option<PathBuf> {
    around.path("VIRTUAL_ENV")
}

/// The same names in the folders above, if those belong to the project's owner or to root.
fn parent_envs(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let owner = |path: &Path| path.metadata().map(|found| found.uid()).ok();
    let link_owner = |path: &Path| path.symlink_metadata().map(|found| found.uid()).ok();
    let own = owner(dir);
    let parents = dir.ancestors().skip(1).take(MAX_PARENTS);
    let folders = parents.flat_map(|parent| LOCAL_NAMES.map(|name| parent.join(name)));
    let is_trusted = |folder: &PathBuf| {
        let owners = [owner(folder), link_owner(folder)];
        owners
            .iter()
            .all(|found| found.is_none() || *found == Some(0) || *found == own)
    };
    folders.filter(is_trusted).collect::<Vec<_>>().into_iter()
}

/// Poetry's: `NAME-HASH-pyX.Y` in its cache, for a project with a `poetry.lock` or `[tool.poetry]`.
/// The newest Python comes first.
fn poetry_envs(dir: &Path, around: &Surroundings) -> Vec<PathBuf> {
    let project = read_small_file(&dir.join("pyproject.toml")).unwrap_or_default();
    let is_poetry = dir.join("poetry.lock").is_file() || project.contains("[tool.poetry]");
    let Some((home, name)) = poetry_home(around)
        .zip(project_name(&project))
        .filter(|_| is_poetry)
    else {
        return Vec::new();
    };
    let real = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let hash = &hash_text(&real.to_string_lossy(), usize::MAX)[..8];
    let prefix = format!("{}-{hash}-py", sanitize(&normalize(&name)));
    let mut found: Vec<(Vec<u32>, PathBuf)> = (super::list_names(&home).into_iter())
        .filter_map(|name| {
            let version = super::versions::version_numbers(name.strip_prefix(&prefix)?)?;
            Some((version, home.join(name)))
        })
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, folder)| folder).collect()
}

/// Where Poetry keeps its environments.
fn poetry_home(around: &Surroundings) -> Option<PathBuf> {
    let below = |cache: PathBuf| cache.join("virtualenvs");
    around
        .path("POETRY_VIRTUALENVS_PATH")
        .or_else(|| around.path("POETRY_CACHE_DIR").map(below))
        .or_else(|| Some(below(around.cache_dir()?.join("pypoetry"))))
}

/// The first `name = "..."` of a `pyproject.toml`.
fn project_name(project: &str) -> Option<String> {
    let value = project.lines().find_map(|line| {
        let rest = line.strip_prefix("name")?.trim_start();
        rest.strip_prefix('=')
    })?;
    let name = value.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// Pipenv's: `FOLDER-HASH`, or the name that it is told, for a project with a `Pipfile`.
fn pipenv_env(dir: &Path, around: &Surroundings) -> Option<PathBuf> {
    let file = dir.join("Pipfile");
    let home = pipenv_home(around).filter(|_| file.is_file())?;
    if let Some(name) = around.text("PIPENV_CUSTOM_VENV_NAME") {
        return Some(home.join(name));
    }
    let folder = dir.file_name()?.to_string_lossy().into_owned();
    let hash = hash_text(&file.to_string_lossy(), 6);
    Some(home.join(format!("{}-{hash}", sanitize(&folder))))
}

fn pipenv_home(around: &Surroundings) -> Option<PathBuf> {
    let named = around.path("WORKON_HOME");
    named.or_else(|| Some(around.data_dir()?.join("virtualenvs")))
}

/// A project's name as packages have it: in small letters, each run of `-`, `_` and `.` a hyphen.
fn normalize(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_lowercase()
}

/// What Poetry and Pipenv replace in names, and how much they keep.
fn sanitize(name: &str) -> String {
    let odd = |c: char| " $`!*@\"()[]&\\\r\n\t".contains(c);
    let kept = name.chars().take(42);
    kept.map(|c| if odd(c) { '_' } else { c }).collect()
}

/// SHA-256 of a text in URL-safe base 64, of its first `max` bytes.
fn hash_text(text: &str, max: usize) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    let bytes = digest.as_ref();
    URL_SAFE.encode(&bytes[..bytes.len().min(max)])
}

/// Conda's: the environment that an `environment.yml` names, else the active one.
fn conda_envs(dir: &Path, around: &Surroundings) -> Vec<PathBuf> {
    let files = ["environment.yml", "environment.yaml"];
    let text = files
        .iter()
        .find_map(|name| read_small_file(&dir.join(name)));
    let active = around.path("CONDA_PREFIX");
    let Some(name) = text.as_deref().and_then(conda_name) else {
        return active.into_iter().collect();
    };
    let is_it = |prefix: &PathBuf| prefix.ends_with(Path::new("envs").join(&name));
    let home = around.home.clone().unwrap_or_default();
    let homes = ["miniconda3", "anaconda3", "miniforge3", "mambaforge"].map(|it| home.join(it));
    let roots = [home.join(".conda"), PathBuf::from("/opt/conda")];
    let listed = around.text("CONDA_ENVS_PATH").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&listed).collect();
    let below = homes
        .into_iter()
        .chain(roots)
        .map(|root| root.join("envs").join(&name));
    let named = listed.iter().map(|root| root.join(&name));
    active
        .into_iter()
        .filter(is_it)
        .chain(named)
        .chain(below)
        .collect()
}

/// `name: NAME` of an `environment.yml`.
fn conda_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("name:"))?;
    let name = value.split('#').next().unwrap_or_default().trim();
    let name = name.trim_matches(['"', '\'']);
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpreter::tests::{TestFolder, surroundings};

    fn found(folder: &TestFolder, dir: &str, around: &Surroundings) -> Option<PathBuf> {
        let (found, _) = find_env(&folder.path(dir), around);
        found.map(|env| env.dir)
    }

    #[test]
    fn finds_the_environment_of_each_tool() {
        let folder = TestFolder::new("environments");
        let project = "app/pyproject.toml";
        let real = folder.path("app");
        folder.write("app/app.py", "");
        // As Poetry 1.8 and Pipenv 2023 name them.
        let poetry = format!(
            "cache/pypoetry/virtualenvs/my-shop-{}-py3.11",
            &hash_text(&real.canonicalize().unwrap().to_string_lossy(), usize::MAX)[..8]
        );
        let pipfile = real.join("Pipfile");
        let pipenv = format!("envs/app-{}", hash_text(&pipfile.to_string_lossy(), 6));
        let rows: [(&str, &str, &str, &str); 8] = [
            ("app/.venv", "", "", ""),
            ("app/env", "", "", ""),
            (".venv", "", "", ""),
            (&poetry, project, "[tool.poetry]\nname = \"My-Shop\"\n", ""),
            (&pipenv, "app/Pipfile", "", ""),
            ("envs/named", "app/.venv", "named\n", ""),
            (
                "home/miniconda3/envs/shop",
                "app/environment.yml",
                "name: shop\n",
                "",
            ),
            ("conda", "", "", "CONDA_PREFIX"),
        ];
        for (env, file, text, variable) in rows {
            folder.write(&format!("{env}/bin/python"), "");
            if !file.is_empty() {
                folder.write(file, text);
            }
            let mut around = surroundings(&folder);
            around.set("WORKON_HOME", folder.path("envs"));
            if !variable.is_empty() {
                around.set(variable, folder.path(env));
            }
            assert_eq!(
                found(&folder, "app", &around),
                Some(folder.path(env)),
                "{env}"
            );
            folder.remove(env);
            if !file.is_empty() {
                folder.remove(file);
            }
        }
    }

    #[test]
    fn hashes_as_the_tools_do() {
        // base64.urlsafe_b64encode(hashlib.sha256(b"/srv/shop").digest())[:8]
        assert_eq!(&hash_text("/srv/shop", usize::MAX)[..8], "58fqC6Q1");
        // base64.urlsafe_b64encode(hashlib.sha256(b"/srv/shop/Pipfile").digest()[:6])[:8]
        assert_eq!(hash_text("/srv/shop/Pipfile", 6), "F2F75yho");
    }

    #[test]
    fn says_how_an_environment_is_made_again() {
        let folder = TestFolder::new("mending");
        let rows = [
            ("uv.lock", "uv sync"),
            ("poetry.lock", "poetry install"),
            ("Pipfile", "pipenv install"),
        ];
        for (file, expected) in rows {
            folder.write(&format!("app/{file}"), "");
            assert_eq!(mend_command(&folder.path("app")), expected);
            folder.remove(&format!("app/{file}"));
        }
        folder.write("app/requirements.txt", "");
        let command = mend_command(&folder.path("app"));
        assert!(
            command.starts_with("python3 -m venv --clear {env} && "),
            "{command}"
        );
    }
}
