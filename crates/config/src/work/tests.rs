//! What `penstock work` takes of a configuration.

use std::path::PathBuf;

use super::*;
use crate::resolve_config;
use crate::testing::{TestDir, write};

const OWN: &str = "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ";

const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

fn work(join: &str) -> WorkOptions {
    WorkOptions {
        front_end: join.to_owned(),
        upstream: None,
        key_file: Some("key".into()),
        plain: false,
    }
}

fn invocation(folder: &TestDir, target: Option<&str>, work: WorkOptions) -> Invocation {
    Invocation {
        target: target.map(str::to_owned),
        work: Some(work),
        cwd: folder.path().to_owned(),
        ..Invocation::default()
    }
}

fn dir_with_key() -> TestDir {
    let folder = TestDir::with_sample_site();
    write(&folder.join("key"), &format!("{KEY}\n"));
    folder
}

fn error_message(invocation: &Invocation) -> String {
    resolve_config(invocation).unwrap_err().to_string()
}

#[test]
fn a_folder_is_served_to_a_front_end_and_to_nobody_else() {
    let folder = dir_with_key();
    write(&folder.join("app.py"), "def app(environ, start): pass\n");
    let config = resolve_config(&invocation(&folder, Some("."), work("front:7000"))).unwrap();
    let name = config.apps.keys().next().unwrap();
    let joins = config.join_target.as_ref().unwrap();
    assert_eq!((&joins.upstream, joins.key.expose()), (name, KEY));
    assert_eq!((joins.address.as_str(), joins.tls), ("front:7000", true));
    assert!(config.server.listen.is_empty() && config.server.admin.is_none());
    assert_eq!(config.sites.len(), 1);
    let named = WorkOptions {
        upstream: Some("shop".into()),
        plain: true,
        ..work("unix:/run/join.sock")
    };
    let mut asked = invocation(&folder, Some("app:app"), named);
    asked.admin = Some("127.0.0.1:0".parse().unwrap());
    let config = resolve_config(&asked).unwrap();
    let joins = config.join_target.unwrap();
    assert_eq!((joins.upstream.as_str(), joins.tls), ("shop", false));
    assert!(config.server.admin.is_some());
}

#[test]
fn of_a_file_one_application_is_left() {
    let folder = dir_with_key();
    write(&folder.join("app.py"), "def app(environ, start): pass\n");
    let file = format!(
        "[server]\nlisten = [\":80\"]\nredis = \"redis://r\"\ntrusted_proxies = [\"10.0.0.0/8\"]\nthreads = 3\n\
         join = {{ listen = \":7000\", key = \"{KEY}-of-the-file\" }}\n\
         [limits]\nheaders = 50\nbody_bytes = 10\n[apps.a]\n[apps.b]\n[upstreams.c]\nservers = [\"127.0.0.1:1\"]\n\
         [upstreams.e]\njoinable = true\njoin_key = \"{OWN}\"\n\
         [caches.d]\nmax_size = \"1MiB\"\n[[tcp]]\nlisten = \":81\"\nupstream = \"c\"\n\
         [[sites]]\nroutes = [{{ app = \"a\", cache = [\"d\"] }}]\n"
    );
    write(&folder.join("penstock.toml"), &file);
    let mut asked = invocation(&folder, Some("b"), work("front:7000"));
    asked.work.as_mut().unwrap().key_file = None;
    let config = resolve_config(&asked).unwrap();
    assert_eq!(config.apps.keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(config.sites[0].routes[0].app.as_deref(), Some("b"));
    assert!(config.upstreams.is_empty() && config.caches.is_empty() && config.tcp.is_empty());
    let server = &config.server;
    assert!(server.listen.is_empty() && server.redis.is_none() && server.join.is_none());
    assert_eq!(server.threads, 3);
    let limits = &config.limits;
    assert_eq!((limits.max_headers, limits.min_body_rate), (MAX_HEADERS, 0));
    assert_eq!(limits.min_busy_rate, 0);
    assert!(limits.max_body_size > 1 << 60 && limits.idle_timeout == UNLIMITED_IDLE);
    assert_eq!(
        config.join_target.unwrap().key,
        format!("{KEY}-of-the-file").into()
    );
    assert!(
        error_message(&invocation(&folder, None, work("front:7000")))
            .contains("say which application: a, b")
    );
    asked.work.as_mut().unwrap().upstream = Some("e".to_owned());
    let own = resolve_config(&asked).unwrap().join_target.unwrap();
    assert_eq!((own.upstream.as_str(), own.key.expose()), ("e", OWN));
    // The table that has the key says whether there is TLS, and a key file says nothing.
    assert!(own.tls);
    let plain = file.replace("-of-the-file\" }", "-of-the-file\", tls = false }");
    write(&folder.join("penstock.toml"), &plain);
    assert!(!resolve_config(&asked).unwrap().join_target.unwrap().tls);
    asked.work.as_mut().unwrap().key_file = Some("key".into());
    assert!(resolve_config(&asked).unwrap().join_target.unwrap().tls);
    let mut other = invocation(&folder, Some("x"), work("front:7000"));
    other.config = Some(PathBuf::from("penstock.toml"));
    assert!(error_message(&other).contains("say which application: a, b"));
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let folder = dir_with_key();
    write(&folder.join("app.py"), "def app(environ, start): pass\n");
    for join in [
        "",
        "front",
        ":7000",
        "front:0",
        "front:70000",
        "front:x",
        "unix:",
        "http://a:1/",
    ] {
        let refused = error_message(&invocation(&folder, Some("."), work(join)));
        assert!(refused.contains("--join cannot be"), "{join}: {refused}");
    }
    for good in ["front:7000", "[::1]:7000", "10.0.0.1:1", "unix:/run/a"] {
        assert!(
            resolve_config(&invocation(&folder, Some("."), work(good))).is_ok(),
            "{good}"
        );
    }
    let socket = resolve_config(&invocation(&folder, Some("."), work("unix:run/a"))).unwrap();
    let expected = format!("unix:{}/run/a", folder.path().display());
    assert_eq!(socket.join_target.unwrap().address, expected);
    let long = format!("unix:/{}", "a".repeat(200));
    assert!(
        error_message(&invocation(&folder, Some("."), work(&long))).contains("--join cannot be")
    );
    let mut asked = work("front:7000");
    asked.upstream = Some("a b".into());
    assert!(error_message(&invocation(&folder, Some("."), asked)).contains("--upstream cannot be"));
    let mut asked = work("front:7000");
    asked.key_file = None;
    assert!(error_message(&invocation(&folder, Some("."), asked)).contains("there is no key"));
    write(&folder.join("short"), "short\n");
    for (file, expected) in [("short", "at least 32 bytes"), ("none", "cannot be read")] {
        let mut asked = work("front:7000");
        asked.key_file = Some(file.into());
        let refused = error_message(&invocation(&folder, Some("."), asked));
        assert!(refused.contains(expected), "{file}: {refused}");
        assert!(!refused.contains(KEY));
    }
}
