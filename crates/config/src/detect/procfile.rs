//! What a Procfile starts beside the application of its folder: programs that serve no requests, and
//! the command that runs before new code serves.
//!
//! Used by `resolve` for a folder without a configuration file, once its application is known.
//!
//! # Invariants
//! - Each line is started, or named in a note with the reason why not.

use std::path::Path;

use super::hints;
use super::programs::shell_words;
use crate::disk;
use crate::model::{App, AppKind, Config, Detection, Processes};
use crate::section;

/// Types of processes that are started by hand.
const BY_HAND: [&str; 2] = ["console", "shell"];

/// Adds to the only application of a configuration what the Procfile of its folder starts beside it.
/// `with_jobs` is whether programs are started, not `release` alone.
pub(crate) fn add_procfile_programs(config: &mut Config, dir: &Path, with_jobs: bool) {
    let text = disk::read_source_or_empty(&dir.join("Procfile"));
    let Some(mut owner) = config.apps.pop_first().map(|(_, app)| app) else {
        return;
    };
    let mut notes = Vec::new();
    for (kind, line) in hints::procfile_lines(&text) {
        match kind {
            "web" => {}
            "release" => {
                owner.release_command = shell_words(line).into();
                notes.push(format!("release {line} (Procfile)"));
            }
            _ if !with_jobs || BY_HAND.contains(&kind) => {}
            _ => match why_not(kind, line, &owner) {
                Some(why) => notes.push(format!("Procfile: `{kind}` is not started: {why}")),
                None => {
                    let job = job_of(kind, line, &owner);
                    notes.push(format!("job {kind} runs {line} (Procfile)"));
                    config.apps.insert(job.name.clone(), job);
                }
            },
        }
    }
    config.apps.insert(owner.name.clone(), owner);
    config.start_notes.extend(notes);
}

fn why_not(kind: &str, line: &str, owner: &App) -> Option<String> {
    if hints::starts_penstock(line) {
        return Some("it is this program".to_owned());
    }
    if line.contains("$PORT") || line.contains("${PORT") {
        return Some("it listens at a port of its own: name it in a penstock.toml".to_owned());
    }
    if kind == owner.name || !section::is_valid_name(kind) {
        return Some("it needs another name".to_owned());
    }
    None
}

fn job_of(kind: &str, line: &str, owner: &App) -> App {
    let mut job = App::new(kind, owner.dir.clone(), AppKind::Job, "");
    job.command = shell_words(line).into();
    job.processes = Processes::exactly(1);
    job.owner = Some(owner.name.clone());
    job.env = owner.env.clone();
    // The note beside it names it.
    job.detection = Some(Detection {
        title: Some(line.to_owned()),
        ..Detection::default()
    });
    job
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::{Invocation, resolve_config};
    use crate::testing::TestDir;

    fn resolve(procfile: &str, without_jobs: bool) -> Config {
        let folder = TestDir::with_files(&[
            (
                "shop/app.py",
                "def application(environ, start_response): pass\n",
            ),
            ("shop/Procfile", procfile),
        ]);
        let invocation = Invocation {
            cwd: folder.path().join("shop"),
            without_jobs,
            ..Invocation::default()
        };
        resolve_config(&invocation).expect("an application")
    }

    const PROCFILE: &str = "# comment: x\nweb: gunicorn app\nrelease: python manage.py migrate\n\
                            worker: celery -A shop worker\nclock: A=1 ./clock\n\
                            api: uvicorn api:app --port $PORT\nconsole: bin/console\n\
                            shop: ./again\n";

    #[test]
    fn its_programs_run_beside_the_application() {
        let config = resolve(PROCFILE, false);
        let names: Vec<&str> = config.apps.keys().map(String::as_str).collect();
        assert_eq!(names, ["clock", "shop", "worker"]);
        let worker = &config.apps["worker"];
        assert_eq!(worker.command[2], "exec celery -A shop worker");
        assert_eq!(
            (worker.kind, worker.owner.as_deref()),
            (AppKind::Job, Some("shop"))
        );
        assert_eq!(worker.processes, Processes::exactly(1));
        assert_eq!(config.apps["clock"].command[2], "A=1 ./clock");
        let shop = &config.apps["shop"];
        assert_eq!(shop.release_command[2], "exec python manage.py migrate");
        assert_eq!(shop.kind, AppKind::Wsgi);
        let notes = config.start_notes.join("\n");
        for part in [
            "release python manage.py migrate (Procfile)",
            "job worker runs celery -A shop worker (Procfile)",
            "`api` is not started: it listens at a port",
            "`shop` is not started: it needs another name",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
    }

    #[test]
    fn programs_are_left_out_on_request_and_the_release_command_is_not() {
        let config = resolve(PROCFILE, true);
        assert_eq!(config.apps.len(), 1);
        assert!(!config.apps["shop"].release_command.is_empty());
    }
}
