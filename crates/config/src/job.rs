//! One `[jobs.NAME]` table.
//!
//! Called by `parse` for each, behind the applications, which a job may belong to.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::app::{read_command, read_environment};
use crate::dev_defaults;
use crate::findings::LocatedValue;
use crate::model::{App, AppKind, Processes, Schedule, ScheduledJob, TimeOfDay};
use crate::parse::report_unusable_dir;
use crate::processes;
use crate::redacted::EnvVariables;
use crate::route::check_name_exists;
use crate::section::{Section, TextOrList};

/// What a table says.
pub(crate) enum Job {
    /// It runs all the time.
    Lasting(App),
    /// It runs at times.
    Scheduled(ScheduledJob),
}

/// Reads the table; none when it says too little that is right.
pub(crate) fn read(
    name: &LocatedValue<String>,
    table: &Section<'_>,
    (app_names, apps): (&[String], &BTreeMap<String, App>),
) -> Option<Job> {
    if app_names.contains(&name.value) {
        let problem = format!(
            "there is an application `{}` already: a job needs another name",
            name.value
        );
        table.report(name.offset, problem);
    }
    let owner = table.text("app");
    if let Some(owner) = &owner {
        check_name_exists(table, "app", owner, app_names.iter().map(String::as_str));
    }
    let owner = owner.and_then(|owner| apps.get(owner.value));
    let mut app = read_program(name, table, owner);
    let Some(command) = read_command(table, "command") else {
        if !table.has("command") {
            table.report_missing("command");
        }
        return None;
    };
    app.command = command.value;
    let timeout: Option<Duration> = table.get("timeout");
    let Some(schedule) = read_schedule(table) else {
        table.report_not_applicable("timeout");
        return Some(Job::Lasting(app));
    };
    table.report_not_applicable("processes");
    app.processes = Processes::exactly(1);
    Some(Job::Scheduled(ScheduledJob {
        program: app,
        schedule,
        timeout,
    }))
}

/// How it runs: as its application, where it says nothing else.
fn read_program(name: &LocatedValue<String>, table: &Section<'_>, owner: Option<&App>) -> App {
    let dir = table.path("dir");
    if let Some(dir) = &dir {
        report_unusable_dir(table, "dir", dir);
    }
    let usual = owner.map_or_else(|| table.findings.base_dir(), |owner| &owner.dir);
    let dir = dir.map_or_else(|| usual.to_owned(), |dir| dir.value);
    let mut app = App::new(&name.value, dir, AppKind::Job, "");
    if table.findings.is_development() {
        dev_defaults::apply_to_app(&mut app);
    }
    app.processes = Processes::exactly(1);
    processes::read(table, &mut app);
    let mut env = read_environment(table, &mut app);
    if let Some(owner) = owner {
        app.owner = Some(owner.name.clone());
        if !table.has("user") {
            (app.user, app.group) = (owner.user.clone(), owner.group.clone());
        }
        if !table.has("isolation") {
            (app.isolation, app.access) = (owner.isolation, owner.access.clone());
        }
        for (variable, value) in owner.env.iter() {
            env.entry(variable.clone()).or_insert_with(|| value.clone());
        }
    }
    app.env = EnvVariables::from(env);
    app
}

fn read_schedule(table: &Section<'_>) -> Option<Schedule> {
    let every: Option<Duration> = table.get("every");
    let at = read_times(table);
    if table.has("every") && table.has("at") {
        table.report_key("at", "`every` and `at` both say when it runs: keep one");
    }
    every.map(Schedule::Every).or_else(|| at.map(Schedule::At))
}

fn read_times(table: &Section<'_>) -> Option<Vec<TimeOfDay>> {
    let texts = match table.text_or_texts("at")? {
        TextOrList::One(text) => vec![text],
        TextOrList::List(list) => {
            let at = list.offset;
            table.check_not_empty("at");
            let texts = list.value.into_iter();
            texts.map(|text| LocatedValue::new(text, at)).collect()
        }
    };
    let read = |text: LocatedValue<&str>| {
        let time = TimeOfDay::parse(text.value);
        if time.is_none() {
            table.report_invalid("at", &text);
        }
        time
    };
    let mut times: Vec<_> = texts.into_iter().filter_map(read).collect();
    times.sort_unstable();
    times.dedup();
    (!times.is_empty()).then_some(times)
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestDir, parse_valid};

    use super::*;

    fn folder() -> TestDir {
        TestDir::with_files(&[("shop/app.py", "application = 1\n"), ("shop/.env", "B=2\n")])
    }

    const APP: &str = "[apps.shop]\ndir = \"shop\"\nkind = \"wsgi\"\nentry = \"app:application\"\n\
                       env = { A = \"1\", Q = \"app\" }\nisolation = false\n";

    #[test]
    fn a_job_runs_as_its_application_unless_it_says_otherwise() {
        let folder = folder();
        let toml = format!(
            "{APP}[jobs.mail]\ncommand = \"celery -A 'my shop' worker\"\napp = \"shop\"\n\
             processes = 2\nenv = {{ Q = \"mail\" }}\nenv_file = \"shop/.env\"\n\
             stop_timeout = \"60s\"\n"
        );
        let config = parse_valid(&folder, &toml);
        let job = &config.apps["mail"];
        assert_eq!(
            (job.kind, job.owner.as_deref()),
            (AppKind::Job, Some("shop"))
        );
        assert_eq!(job.command, ["celery", "-A", "my shop", "worker"]);
        assert_eq!((job.processes.min, job.processes.max), (2, 2));
        assert_eq!(
            (job.isolation, job.stop_timeout),
            (false, Duration::from_secs(60))
        );
        let of = |name: &str| job.env.get(name).map(String::as_str);
        assert_eq!(
            (of("A"), of("B"), of("Q")),
            (Some("1"), Some("2"), Some("mail"))
        );
        // It is none that a site could have by itself.
        assert_eq!(config.sites[0].routes[0].app.as_deref(), Some("shop"));
    }

    #[test]
    fn a_job_with_times_is_none_that_lasts() {
        let toml = "[jobs.clean]\ncommand = [\"rm\", \"-rf\", \"x y\"]\nat = [\"23:05\", \"03:30\"]\n\
                    timeout = \"1h\"\n[jobs.tick]\ncommand = \"date\"\nevery = \"5m\"\n\
                    [[sites]]\n[[sites.routes]]\nrespond = {}\n";
        let config = parse_valid(&folder(), toml);
        assert!(config.apps.is_empty());
        let clean = &config.jobs["clean"];
        assert_eq!(clean.schedule.to_string(), "at 03:30, 23:05");
        assert_eq!(clean.timeout, Some(Duration::from_secs(3600)));
        assert_eq!(clean.program.command, ["rm", "-rf", "x y"]);
        assert_eq!(config.jobs["tick"].schedule.to_string(), "every 300s");
    }

    #[test]
    fn jobs_that_cannot_be_meant_are_refused() {
        for (job, expected) in [
            ("", "`command` is missing"),
            ("command = \"'open\"", "`command` cannot be"),
            (
                "command = \"x\"\napp = \"shpo\"",
                "there is no app `shpo`; did you mean `shop`?",
            ),
            ("command = \"x\"\nat = \"3:30\"", "`at` cannot be \"3:30\""),
            (
                "command = \"x\"\nat = [\"24:00\"]",
                "`at` cannot be \"24:00\"",
            ),
            ("command = \"x\"\nat = []", "`at` needs at least one item"),
            (
                "command = \"x\"\nat = \"03:30\"\nevery = \"1d\"",
                "keep one",
            ),
            ("command = \"x\"\ntimeout = \"1d\"", "`timeout` is only for"),
            (
                "command = \"x\"\nevery = \"1d\"\nprocesses = 2",
                "`processes` is only for",
            ),
        ] {
            let folder = folder();
            let toml = format!("{APP}[jobs.x]\n{job}\n");
            let found = crate::parse(&toml, &folder.path().join("penstock.toml"));
            let found = found.expect_err(job).to_string();
            assert!(found.contains(expected), "{job}: {found}");
        }
        let folder = folder();
        let toml = format!("{APP}[jobs.shop]\ncommand = \"x\"\n");
        let found = crate::parse(&toml, &folder.path().join("penstock.toml"));
        let found = found.expect_err("one name").to_string();
        assert!(
            found.contains("there is an application `shop` already"),
            "{found}"
        );
        let route =
            format!("{APP}[jobs.x]\ncommand = \"x\"\n[[sites]]\n[[sites.routes]]\napp = \"x\"\n");
        let found = crate::parse(&route, &folder.path().join("penstock.toml"));
        assert!(
            found
                .expect_err("no app")
                .to_string()
                .contains("there is no app `x`")
        );
    }
}
