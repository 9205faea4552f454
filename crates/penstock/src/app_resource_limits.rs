//! Resource limits of applications and all their processes: from the configuration to cgroups.
//!
//! `cli` creates the cgroups before the launcher is forked, which puts programs into them.
//! `components` asks for an application's cgroup; the log, the status page and `check` report
//! limits that cannot be enforced.
//!
//! # Invariants
//!
//! - Limits are those of the start. A reload that changes them is refused: a process that could
//!   change them later could lift them.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_config::{App, Config};
use penstock_sys::account::Account;
use penstock_sys::cgroup::{
    AppCgroup, AppCgroupLimits, Controller, MissingController, ServerCgroups,
};

use crate::accounts::AppAccounts;

/// The resource limits of applications as of the start, and their cgroups.
#[derive(Debug)]
pub(crate) struct AppResourceLimits {
    stated: BTreeMap<String, ConfiguredLimits>,
    cgroups: ServerCgroups,
}

/// The limits in an application's table.
type ConfiguredLimits = (Option<u64>, Option<u64>, Option<f64>);

fn stated(app: &App) -> ConfiguredLimits {
    (app.max_tasks, app.max_total_memory, app.max_cpu)
}

impl AppResourceLimits {
    /// Creates a cgroup for each application if any has a limit; within one hierarchy they share
    /// the processors. Blocks. `parent_waits`: the parent process waits for this one.
    pub(crate) fn create_cgroups(
        config: &Config,
        accounts: &AppAccounts,
        parent_waits: bool,
    ) -> Self {
        // The launcher knows the users of the start.
        let account = |app: &App| account_name(accounts, app);
        let weight = u32::try_from(config.server.threads).unwrap_or(u32::MAX);
        let programs = config.programs();
        Self {
            stated: programs
                .map(|app| (app.name.clone(), stated(app)))
                .collect(),
            cgroups: ServerCgroups::make(&plans(config.programs(), account), weight, parent_waits),
        }
    }

    /// The cgroups, for the launcher.
    pub(crate) fn cgroups(&self) -> impl Iterator<Item = &AppCgroup> {
        self.cgroups.iter()
    }

    /// The cgroup of an application; `None` without limits.
    ///
    /// # Errors
    /// The limits differ from those of the start.
    pub(crate) fn cgroup_of(
        &self,
        app: &App,
        account: Option<&Account>,
    ) -> Result<Option<Arc<AppCgroup>>, String> {
        let name = &app.name;
        let user = account.map(|account| account.name.as_str());
        let table = app.table_name();
        let restart = |why: &str| Err(format!("{table}: {why}: restart the server"));
        let Some(then) = self.stated.get(name) else {
            let is_bounded = |group: &AppCgroup| user.is_some() && group.is_for_account(user);
            return match stated(app) == ConfiguredLimits::default()
                && !self.cgroups.iter().any(is_bounded)
            {
                true => Ok(None),
                false => restart("it did not exist when the server was started, and has bounds"),
            };
        };
        if *then != stated(app) {
            return restart(
                "max_tasks, max_total_memory and max_cpu stay as they were when the server was \
                 started",
            );
        }
        match self.cgroups.find(name) {
            Some(group) if !group.is_for_account(user) => {
                restart("it had another user when the server was started")
            }
            found => Ok(found.cloned()),
        }
    }

    /// Bounds that are not enforced, a line each.
    pub(crate) fn warnings(&self, config: &Config) -> Vec<String> {
        let bounds_user = |app: &App| {
            let group = self.cgroups.find(&app.name);
            group.is_some_and(|group| group.has_user_task_limit())
        };
        warnings(config.programs(), self.cgroups.missing(), bounds_user)
    }
}

/// Limits that would not be enforced if this process were the server, a line each. Changes nothing.
pub(crate) fn unenforceable_limits(config: &Config) -> Vec<String> {
    let server = crate::accounts::configured_account(&config.server)
        .ok()
        .flatten();
    let accounts = AppAccounts::resolve(config, server.as_ref());
    let account = |app: &App| match &accounts {
        Ok(accounts) => account_name(accounts, app),
        // An ordinary user checks a configuration that root will start.
        Err(_) => app.user.clone(),
    };
    let missing = ServerCgroups::find_missing_controllers(&plans(config.programs(), account));
    warnings(config.programs(), &missing, |app| account(app).is_some())
}

fn account_name(accounts: &AppAccounts, app: &App) -> Option<String> {
    Some(accounts.account_of(app).ok()??.name.clone())
}

fn plans<'c>(
    programs: impl Iterator<Item = &'c App>,
    account: impl Fn(&App) -> Option<String>,
) -> Vec<AppCgroupLimits> {
    let plan = |app: &App| AppCgroupLimits {
        name: app.name.clone(),
        account: account(app),
        max_tasks: app.effective_max_tasks(),
        max_memory: app.max_total_memory,
        max_cpu: app.max_cpu,
        weight: u32::try_from(app.processes.max).unwrap_or(u32::MAX),
    };
    let plans: Vec<_> = programs.map(plan).collect();
    let is_bounded = |plan: &AppCgroupLimits| {
        let AppCgroupLimits {
            max_tasks,
            max_memory,
            max_cpu,
            ..
        } = plan;
        max_tasks.is_some() || max_memory.is_some() || max_cpu.is_some()
    };
    match plans.iter().any(is_bounded) {
        true => plans,
        false => Vec::new(),
    }
}

/// `bounds_user`: whether a limit of the user's processes replaces the application's own.
fn warnings<'c>(
    programs: impl Iterator<Item = &'c App>,
    missing: &[MissingController],
    bounds_user: impl Fn(&App) -> bool,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let programs: Vec<&App> = programs.collect();
    for MissingController { controller, reason } in missing {
        let (key, is_stated): (_, fn(&App) -> bool) = match controller {
            Controller::Tasks => ("max_tasks", |app| app.effective_max_tasks().is_some()),
            Controller::Memory => ("max_total_memory", |app| app.max_total_memory.is_some()),
            Controller::Cpu => ("max_cpu", |app| app.max_cpu.is_some()),
        };
        let apps = programs.iter().copied().filter(|app| is_stated(app));
        // The limit of processes of its own user is nearly as good. The server's user has none.
        let (by_user, not_held): (Vec<_>, Vec<_>) =
            apps.partition(|app| *controller == Controller::Tasks && bounds_user(app));
        let names = |apps: &[&App]| {
            let names: Vec<_> = apps.iter().map(|app| app.name.as_str()).collect();
            names.join(", ")
        };
        if !not_held.is_empty() {
            let names = names(&not_held);
            warnings.push(format!(
                "{key} of {names} is not enforced: {reason} (penstock config explain {key})"
            ));
        }
        if !by_user.is_empty() {
            let names = names(&by_user);
            warnings.push(format!(
                "{key} of {names} counts all processes of the user: {reason} (penstock config explain {key})"
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    use penstock_config::AppKind;

    type Apps = BTreeMap<String, App>;

    fn apps(apps: &[App]) -> Apps {
        let apps = apps.iter().map(|app| (app.name.clone(), app.clone()));
        apps.collect()
    }

    fn app(name: &str) -> App {
        App::new(name, "/".into(), AppKind::Wsgi, "app")
    }

    fn limits(apps: &Apps) -> AppResourceLimits {
        AppResourceLimits {
            stated: apps
                .iter()
                .map(|(name, app)| (name.clone(), stated(app)))
                .collect(),
            cgroups: ServerCgroups::default(),
        }
    }

    #[test]
    fn one_bound_makes_a_group_for_each_application() {
        let (free, mut bounded) = (app("free"), app("bounded"));
        let none = plans(apps(&[free.clone(), bounded.clone()]).values(), |_| None);
        assert!(none.is_empty());
        bounded.max_cpu = Some(1.5);
        let all = plans(apps(&[free, bounded]).values(), |app| {
            Some(app.name.clone())
        });
        let shown: Vec<_> = all.iter().map(|it| (&*it.name, it.max_cpu)).collect();
        assert_eq!(shown, [("bounded", Some(1.5)), ("free", None)]);
        assert_eq!(all[0].account.as_deref(), Some("bounded"));
    }

    #[test]
    fn other_bounds_take_a_restart() {
        let mut shop = app("shop");
        shop.max_tasks = Some(100);
        let limits = limits(&apps(&[shop.clone(), app("plain")]));
        assert!(
            limits.cgroup_of(&shop, None).is_ok() && limits.cgroup_of(&app("plain"), None).is_ok()
        );
        // The number of workers, and so on, may change.
        shop.processes.max += 1;
        assert!(limits.cgroup_of(&shop, None).is_ok());
        let changes: [fn(&mut App); 4] = [
            |app| app.max_tasks = Some(101),
            |app| app.max_tasks = None,
            |app| app.max_total_memory = Some(1 << 30),
            |app| app.max_cpu = Some(0.5),
        ];
        for change in changes {
            let mut changed = shop.clone();
            change(&mut changed);
            let error = limits.cgroup_of(&changed, None).unwrap_err();
            assert!(error.starts_with("apps.shop: max_tasks, "), "{error}");
            assert!(error.ends_with("restart the server"), "{error}");
        }
        let mut new = app("new");
        assert!(limits.cgroup_of(&new, None).is_ok());
        new.max_cpu = Some(1.0);
        let error = limits.cgroup_of(&new, None).unwrap_err();
        assert!(error.starts_with("apps.new: it did not exist"), "{error}");
    }

    #[test]
    fn what_is_not_held_is_named_with_the_reason() {
        let (mut shop, mut blog) = (app("shop"), app("blog"));
        (shop.user, shop.max_total_memory) = (Some("shop".into()), Some(1 << 30));
        blog.max_tasks = Some(100);
        let apps = apps(&[shop, blog, app("plain")]);
        let missing = [Controller::Tasks, Controller::Memory].map(|controller| MissingController {
            controller,
            reason: "no rights".to_owned(),
        });
        assert_eq!(
            warnings(apps.values(), &missing, |app| app.name == "shop"),
            [
                "max_tasks of blog is not enforced: no rights (penstock config explain max_tasks)",
                "max_tasks of shop counts all processes of the user: no rights (penstock config explain max_tasks)",
                "max_total_memory of shop is not enforced: no rights (penstock config explain max_total_memory)",
            ]
        );
        assert!(warnings(apps.values(), &[], |_| true).is_empty());
        // The user is the server's own, which has no bound.
        assert_eq!(
            warnings(apps.values(), &missing[..1], |_| false),
            [
                "max_tasks of blog, shop is not enforced: no rights (penstock config explain max_tasks)"
            ]
        );
    }
}
