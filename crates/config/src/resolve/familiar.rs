//! What the words of other servers on the command line change: `--host`, `--port`, `-e`, and a range
//! of threads.
//!
//! Called by `resolve` once the file, the folder and the environment have been read.

use std::net::{IpAddr, Ipv4Addr};

use super::Invocation;
use crate::model::{App, Config};
use crate::surroundings::DEFAULT_PORT;
use crate::values::ListenAddr;

/// The address that `--host` and `--port` name: what one of them leaves out is that of the first
/// TCP listener, else 127.0.0.1:8080. `None` without either.
pub(super) fn named_address(config: &Config, invocation: &Invocation) -> Option<ListenAddr> {
    if invocation.host.is_none() && invocation.port.is_none() {
        return None;
    }
    let listeners = config.server.listen.iter().filter(|it| !it.has_tls);
    // `None` is every address of the machine.
    let in_file = listeners.map(|it| &it.address).find_map(|it| match it {
        ListenAddr::Tcp(address) => Some((Some(address.ip()), address.port())),
        ListenAddr::Port(port) => Some((None, *port)),
        ListenAddr::Unix(_) => None,
    });
    let default = (Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), DEFAULT_PORT);
    let (ip, port) = in_file.unwrap_or(default);
    let port = invocation.port.unwrap_or(port);
    Some(match invocation.host.or(ip) {
        Some(ip) => ListenAddr::Tcp((ip, port).into()),
        None => ListenAddr::Port(port),
    })
}

/// Gives every application and job the variables of `-e`, which go before those of a file.
pub(super) fn apply_environment(config: &mut Config, variables: &[(String, String)]) {
    if variables.is_empty() {
        return;
    }
    let jobs = config.jobs.values_mut().map(|job| &mut job.program);
    for app in config.apps.values_mut().chain(jobs) {
        let mut env = (*app.env).clone();
        env.extend(variables.iter().cloned());
        app.env = env.into();
    }
}

/// Sets the number of threads, or their bounds, where an application has threads. A server of its
/// own has no bounds.
pub(super) fn apply_threads(app: &mut App, max: Option<usize>, min: Option<usize>) {
    let Some(max) = max.filter(|_| !app.has_reactor() || app.kind_is_guess) else {
        return;
    };
    app.threads = max;
    app.min_threads = match app.upstream {
        Some(_) => max,
        None => min.unwrap_or(max).min(max),
    };
}

/// An IP address, with or without brackets, or the name of this machine for itself.
#[must_use]
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    match text.trim() {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        text => text.trim_matches(['[', ']']).parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::resolve_config;
    use crate::testing::TestDir;

    fn resolved(file: &str, change: impl Fn(&mut Invocation)) -> Config {
        let folder = TestDir::with_files(&[("penstock.toml", file), ("config.ru", "")]);
        let mut invocation = Invocation {
            cwd: folder.path().to_owned(),
            ..Invocation::default()
        };
        change(&mut invocation);
        resolve_config(&invocation).unwrap()
    }

    #[test]
    fn a_host_or_a_port_alone_keeps_the_other_part() {
        let any = "::".parse().ok();
        let rows = [
            ("\"10.0.0.1:90\"", None, Some(81), "http://10.0.0.1:81"),
            ("\":90\"", None, Some(81), "http://*:81"),
            ("\":90\"", any, None, "http://[::]:90"),
            ("\"unix:x.sock\"", None, Some(81), "http://127.0.0.1:81"),
            ("\"unix:x.sock\"", any, None, "http://[::]:8080"),
            ("[\":90\", \":91\"]", any, Some(0), "http://[::]:0"),
        ];
        for (listen, host, port, expected) in rows {
            let file = format!("[server]\nlisten = {listen}\n[apps.a]\n");
            let config = resolved(&file, |it| (it.host, it.port) = (host, port));
            let listeners = &config.server.listen;
            let addresses: Vec<_> = listeners.iter().map(|it| it.address.to_string()).collect();
            assert_eq!(addresses, [expected], "{listen}");
        }
    }

    #[test]
    fn variables_go_before_those_of_the_file_and_reach_jobs() {
        let file = "[apps.a]\nenv = { RACK_ENV = \"test\", A = \"1\" }\n[jobs.b]\ncommand = \"x\"\n\
                    every = \"1h\"\n";
        let variables = [("RACK_ENV", "staging"), ("B", "1"), ("B", "2")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = resolved(file, |it| it.environment = variables.to_vec());
        let of = |app: &App, name: &str| app.env.get(name).cloned();
        let app = &config.apps["a"];
        assert_eq!(of(app, "RACK_ENV").as_deref(), Some("staging"));
        assert_eq!(of(app, "A").as_deref(), Some("1"));
        assert_eq!(of(app, "B").as_deref(), Some("2"));
        let programs: Vec<_> = config.programs().collect();
        assert_eq!(programs.len(), 2);
        assert!(
            programs
                .iter()
                .all(|it| of(it, "B").as_deref() == Some("2"))
        );
    }

    #[test]
    fn a_range_of_threads_is_for_applications_that_have_one() {
        let file = "[apps.a]\n[apps.b]\nkind = \"command\"\ncommand = \"x {port}\"\n\
                    [[sites]]\nroutes = [{ path = \"/*\", app = \"a\" }]\n";
        let config = resolved(file, |it| {
            (it.min_threads, it.threads) = (Some(2), Some(5));
        });
        let counts = |name: &str| (config.apps[name].min_threads, config.apps[name].threads);
        assert_eq!(counts("a"), (2, 5));
        assert_eq!(counts("b"), (5, 5));
    }
}
