//! Keys about processes: what they give, and their errors.

use std::time::Duration;

use super::*;
use crate::model::{ScalingConfig, Sticky};
use crate::testing::{TestDir, check_error_table, parse_valid};

fn read_app(folder: &TestDir, lines: &str) -> App {
    parse_valid(folder, &format!("[apps.a]\n{lines}\n")).apps["a"].clone()
}

#[test]
fn reads_every_key_of_an_application_with_threads() {
    let folder = TestDir::with_sample_site();
    let app = read_app(
        &folder,
        r#"
processes = { min = 2, max = 8 }
scale = { up_after = "50ms", idle_timeout = "5m", max_spawn_rate = 9 }
threads = 3
io_threads = 5
preload = true
refork_after = [500, 1000]
max_surge = 2
max_unavailable = 8
max_memory = { soft = "200MiB", hard = "300MiB", samples = 5 }
max_requests = 100000
max_age = "1d"
gc_when_idle = true
sticky = "client_ip"
stop_timeout = "20s"
stream_timeout = "1h"
"#,
    );
    let seconds = Duration::from_secs;
    let expected = App {
        kind_is_guess: true,
        processes: Processes { min: 2, max: 8 },
        scaling: ScalingConfig {
            up_after: Duration::from_millis(50),
            idle_timeout: seconds(300),
            max_spawn_rate: 9,
        },
        threads: 3,
        min_threads: 3,
        io_threads: 5,
        preload: Preload::Always,
        refork_after: vec![500, 1000],
        max_surge: 2,
        max_unavailable: 8,
        max_memory: Some(MemoryLimit {
            soft: 200 << 20,
            hard: 300 << 20,
            samples: 5,
        }),
        max_requests: Some(100_000),
        max_age: Some(seconds(86_400)),
        gc_when_idle: true,
        sticky: Some(Sticky::ClientIp),
        stop_timeout: seconds(20),
        stream_timeout: seconds(3600),
        ..App::new(
            "a",
            folder.path().to_owned(),
            AppKind::Wsgi,
            "app:application",
        )
    };
    assert_eq!(app, expected);
}

#[test]
fn reads_short_forms() {
    let folder = TestDir::with_sample_site();
    let app = read_app(
        &folder,
        "scale = { idle_timeout = \"7s\" }\nrefork_after = 500\nmax_memory = \"500MiB\"",
    );
    assert_eq!(app.scaling.idle_timeout, Duration::from_secs(7));
    assert_eq!(app.refork_after, [500]);
    let memory = |soft, hard, samples| {
        Some(MemoryLimit {
            soft,
            hard,
            samples,
        })
    };
    assert_eq!(app.max_memory, memory(400 << 20, 500 << 20, 3));
    let of = |text: &str| read_app(&folder, &format!("max_memory = {text}")).max_memory;
    assert_eq!(of("{ soft = \"400MiB\" }"), memory(400 << 20, 500 << 20, 3));
    assert_eq!(
        of("{ hard = 10000000, samples = 1 }"),
        memory(8_000_000, 10_000_000, 1)
    );
}

#[test]
fn takes_the_example_of_the_design() {
    let text = r#"
[apps.guestbook]
dir = "."
kind = "wsgi"
entry = "app:application"
processes = { min = 1, max = 4 }
threads = 1
queue = { max = 1000, timeout = "30s" }
response_timeout = "60s"
max_memory = "512MiB"
max_requests = 100000
max_age = "1d"
env = { GREETING = "hello" }
"#;
    let app = parse_valid(&TestDir::with_sample_site(), text).apps["guestbook"].clone();
    assert_eq!(app.max_requests, Some(100_000));
    assert_eq!(app.processes, Processes { min: 1, max: 4 });
}

#[test]
fn tells_how_a_process_has_several_requests() {
    let folder = TestDir::with_files(&[
        ("app.py", "application = 1\n"),
        ("main.py", "app = FastAPI()\n"),
        ("config.ru", ""),
    ]);
    let rows = [
        ("kind = \"wsgi\"", Concurrency::Threads, false),
        (
            "kind = \"wsgi\"\nasync = false",
            Concurrency::Threads,
            false,
        ),
        (
            "kind = \"wsgi\"\nasync = \"gevent\"",
            Concurrency::Gevent,
            true,
        ),
        ("kind = \"asgi\"", Concurrency::Tasks, true),
        ("kind = \"asgi\"\nasync = true", Concurrency::Tasks, true),
        ("entry = \"main:app\"", Concurrency::Tasks, true),
        ("kind = \"rack\"", Concurrency::Threads, false),
        ("kind = \"rack\"\nasync = true", Concurrency::Tasks, true),
        (
            "kind = \"rack\"\nasync = true\nmax_concurrent = 9",
            Concurrency::Tasks,
            true,
        ),
    ];
    for (lines, expected, has_reactor) in rows {
        let app = read_app(&folder, lines);
        assert_eq!(app.concurrency, expected, "{lines}");
        assert_eq!(app.has_reactor(), has_reactor, "{lines}");
    }
    assert_eq!(read_app(&folder, "kind = \"asgi\"").entry, "main:app");
}

#[test]
fn threads_may_follow_the_load() {
    let folder = TestDir::with_sample_site();
    for (lines, expected) in [
        ("threads = 4", (4, 4)),
        ("threads = { min = 2, max = 16 }", (2, 16)),
        ("threads = { max = 16 }", (1, 16)),
        ("threads = { min = 3 }", (3, 5)),
        ("threads = { min = 8 }", (8, 8)),
    ] {
        let app = read_app(&folder, &format!("{lines}\nprocesses = 1"));
        assert_eq!((app.min_threads, app.threads), expected, "{lines}");
        let is_scaled = expected.0 < expected.1;
        assert_eq!(
            (app.has_spare_threads(), app.is_autoscaled()),
            (is_scaled, is_scaled)
        );
    }
}

#[test]
fn reports_what_cannot_be() {
    check_error_table(&[
        (
            "async",
            "[apps.a]\nkind = \"wsgi\"\nasync = true\nmax_concurrent = 3\n",
            &["penstock.toml:3:9: `async = true` is only for the kinds \"rack\" and \"asgi\""],
        ),
        (
            "async of asgi",
            "[apps.a]\nkind = \"asgi\"\nentry = \"app:application\"\nasync = false\n",
            &["penstock.toml:4:9: `async = false` is only for the kinds \"wsgi\" and \"rack\""],
        ),
        (
            "gevent",
            "[apps.a]\nkind = \"rack\"\ndir = \"rack\"\nasync = \"gevent\"\n",
            &["penstock.toml:4:9: `async = \"gevent\"` is only for the kind \"wsgi\""],
        ),
        (
            "word",
            "[apps.a]\nasync = \"gevnt\"\nthreads = 2\nmax_concurrent = 1\n",
            &[
                "penstock.toml:2:9: `async` cannot be \"gevnt\": expected true, false or \"gevent\"; did you mean `gevent`?",
            ],
        ),
        (
            "preload",
            "[apps.a]\npreload = \"always\"\n",
            &[
                "penstock.toml:2:11: `preload` cannot be \"always\": expected true, false or \"auto\"",
            ],
        ),
        (
            "type",
            "[apps.a]\nasync = 1\n",
            &["penstock.toml:2:9: `async` must be true, false or \"gevent\", not an integer"],
        ),
        (
            "keys of threads",
            "[apps.a]\nasync = \"gevent\"\nthreads = 2\nio_threads = 1\ngc_when_idle = true\nrefork_after = 5\n",
            &[
                "penstock.toml:3:11: a process with a reactor has one thread: `max_concurrent` bounds what it does at once",
                "penstock.toml:4:14: `io_threads` is only for the kinds \"wsgi\" and \"rack\" without `async`",
                "penstock.toml:5:16: `gc_when_idle` is only for the kinds \"wsgi\" and \"rack\" without `async`",
                "penstock.toml:6:16: `refork_after` is only for the kinds \"wsgi\" and \"rack\" without `async`, with `preload`",
            ],
        ),
        (
            "stickiness",
            "[apps.a]\nsticky = \"x\"\nwebsocket_compression = true\n",
            &[
                "penstock.toml:2:10: `sticky` cannot be \"x\": expected \"cookie\" or \"client_ip\"",
                "penstock.toml:3:25: `websocket_compression` is only for the kind \"asgi\"",
            ],
        ),
        (
            "stickiness of a program",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {port}\"\nsticky = \"cookie\"\n",
            &["penstock.toml:4:10: `sticky` is only for the kinds \"wsgi\", \"asgi\" and \"rack\""],
        ),
        (
            "order of threads",
            "[apps.a]\nthreads = { min = 3, max = 2 }\n",
            &["penstock.toml:2:19: `min` (3) is above `max` (2)"],
        ),
        (
            "threads of a reactor",
            "[apps.a]\nasync = \"gevent\"\nthreads = { max = 2 }\n",
            &[
                "penstock.toml:3:11: a process with a reactor has one thread: `max_concurrent` bounds what it does at once",
            ],
        ),
        (
            "threads of a program",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {port}\"\nthreads = { max = 2 }\n",
            &[
                "penstock.toml:4:11: how many threads a program of its own has is not Penstock's to decide: say how many requests a process gets at once",
            ],
        ),
        (
            "keys of others",
            "[apps.a]\nmax_concurrent = 2\npreload = false\nrefork_after = [1]\n",
            &[
                "penstock.toml:2:18: `max_concurrent` is only for applications with a reactor: the kind \"asgi\", or `async`",
                "penstock.toml:4:16: `refork_after` is only for the kinds \"wsgi\" and \"rack\" without `async`, with `preload`",
            ],
        ),
        (
            "refork",
            "[apps.a]\nrefork_after = [0, 5, \"x\"]\n",
            &[
                "penstock.toml:2:17: `refork_after` cannot be 0: expected a number from 1 to 1000000000",
                "penstock.toml:2:23: `refork_after` must be a number from 1 to 1000000000, or a list of such numbers, not a string",
            ],
        ),
        (
            "empty refork",
            "[apps.a]\nrefork_after = []\n",
            &[
                "penstock.toml:2:16: `refork_after` needs at least one item: expected a number from 1 to 1000000000, or a list of such numbers",
            ],
        ),
        (
            "replacement",
            "[apps.a]\nmax_surge = 0\n",
            &["penstock.toml:2:13: `max_surge` cannot be 0: expected a number from 1 to 1024"],
        ),
        (
            "more than there are",
            "[apps.a]\nprocesses = 2\nmax_unavailable = 3\n",
            &["penstock.toml:3:19: `max_unavailable` (3) is above `processes` (2)"],
        ),
        (
            "bounds of all",
            "[apps.a]\nmax_tasks = 15\nmax_total_memory = \"1MiB\"\nmax_cpu = 0\n",
            &[
                "penstock.toml:2:13: `max_tasks` cannot be 15: expected a number from 16 to 4194304",
                "penstock.toml:3:20: `max_total_memory` cannot be \"1MiB\": expected at least 16MiB",
                "penstock.toml:4:11: `max_cpu` cannot be 0: expected a number from 0.01 to 1024, such as 1.5",
            ],
        ),
        (
            "no number",
            "[apps.a]\nmax_cpu = nan\n",
            &[
                "penstock.toml:2:11: `max_cpu` cannot be nan: expected a number from 0.01 to 1024, such as 1.5",
            ],
        ),
        (
            "memory",
            "[apps.a]\nmax_memory = 512\n",
            &["penstock.toml:2:14: `max_memory` cannot be 512: expected at least 1MiB"],
        ),
        (
            "memory order",
            "[apps.a]\nmax_memory = { soft = \"2MiB\", hard = \"1MiB\", samples = 0 }\n",
            &[
                "penstock.toml:2:23: `soft` (2097152) is above `hard` (1048576)",
                "penstock.toml:2:56: `samples` cannot be 0: expected a number from 1 to 1000",
            ],
        ),
        (
            "no memory",
            "[apps.a]\nmax_memory = { samples = 2 }\n",
            &[
                "penstock.toml:2:14: `hard` is missing in [apps.a.max_memory]: expected a size such as \"8KiB\", \"10MB\" or a number of bytes",
            ],
        ),
        (
            "scale",
            "[apps.a]\nscale = { up_after = \"0s\", max_spawn_rate = 0, up = 1 }\n",
            &[
                "penstock.toml:2:22: `up_after` cannot be \"0s\": expected at least 1ms",
                "penstock.toml:2:45: `max_spawn_rate` cannot be 0: expected a number from 1 to 1024",
                "penstock.toml:2:48: unknown key `up` in [apps.a.scale]",
            ],
        ),
    ]);
}

#[test]
fn workers_are_forked_when_it_is_safe_always_or_never() {
    let folder = TestDir::with_sample_site();
    for (line, expected) in [
        ("", Preload::Auto),
        ("preload = \"auto\"", Preload::Auto),
        ("preload = true", Preload::Always),
        ("preload = false", Preload::Never),
    ] {
        assert_eq!(read_app(&folder, line).preload, expected, "{line}");
    }
}

#[test]
fn programs_take_what_has_a_meaning_for_them() {
    let folder = TestDir::with_sample_site();
    let app = read_app(
        &folder,
        "kind = \"command\"\ncommand = \"x {port}\"\nmax_surge = 2\nmax_unavailable = 1\nmax_memory = \"10MiB\"\nmax_age = \"1h\"\nstop_timeout = \"4s\"",
    );
    assert_eq!((app.max_surge, app.max_unavailable), (2, 1));
    assert_eq!(app.max_age, Some(Duration::from_secs(3600)));
    assert!(app.max_memory.is_some());
    let program = "[apps.a]\nkind = \"fastcgi\"\ncommand = \"x\"\n";
    let values: [&str; SCRIPT_ONLY_KEYS.len()] = [
        "{}",
        "1",
        "true",
        "1",
        "true",
        "true",
        "\"penstock.toml\"",
        "1",
        "1",
        "true",
        "\"1s\"",
        "\".\"",
        "\"cookie\"",
        "true",
    ];
    for (key, value) in SCRIPT_ONLY_KEYS.into_iter().zip(values) {
        let option = crate::options::find_option("apps.NAME", key).unwrap();
        let column = key.len() + 4;
        let expected = format!(
            "penstock.toml:4:{column}: `{key}` is only for {}",
            option.only_for
        );
        check_error_table(&[(key, &format!("{program}{key} = {value}\n"), &[&expected])]);
    }
}

#[test]
fn bounds_of_an_application_with_all_that_it_starts() {
    let folder = TestDir::with_sample_site();
    let app = read_app(
        &folder,
        "max_tasks = 100\nmax_total_memory = \"1GiB\"\nmax_cpu = 1.5",
    );
    let bounds = (app.effective_max_tasks(), app.max_total_memory, app.max_cpu);
    assert_eq!(bounds, (Some(100), Some(1 << 30), Some(1.5)));
    assert_eq!(read_app(&folder, "max_cpu = 2").max_cpu, Some(2.0));
    let app = read_app(&folder, "");
    let bounds = (app.effective_max_tasks(), app.max_total_memory, app.max_cpu);
    assert_eq!(bounds, (None, None, None));
}

#[test]
fn an_application_with_a_user_of_its_own_never_starts_without_end() {
    let folder = TestDir::with_sample_site();
    let bound =
        |more: &str| read_app(&folder, &format!("user = \"shop\"\n{more}")).effective_max_tasks();
    let few = bound("processes = 1").unwrap();
    assert!((1024..20_000).contains(&few), "{few}");
    // Room for two sets of the largest that there may be.
    let many = bound("processes = 1000\nthreads = 20\nio_threads = 5").unwrap();
    assert!(many >= 1024 + 2 * 1000 * 25, "{many}");
    assert_eq!(bound("max_tasks = 64"), Some(64));
}

#[test]
fn isolation_is_a_flag_or_says_what_is_left_open() {
    let folder = TestDir::with_sample_site();
    let app = read_app(&folder, "isolation = false");
    assert!(!app.isolation && app.access == Access::default());
    let app = read_app(
        &folder,
        "isolation = { read_paths = [\"/srv/shared\"], write_paths = [\"var\"], \
         connect_ports = [\"5432\"], bind_ports = [] }",
    );
    let expected = Access {
        read_paths: Some(vec!["/srv/shared".into()]),
        write_paths: Some(vec![folder.path().join("var")]),
        connect_ports: Some(vec![5432]),
        bind_ports: Some(Vec::new()),
    };
    assert!(app.isolation);
    assert_eq!(app.access, expected);
    assert!(app.access.limits_files() && app.access.limits_ports());
    check_error_table(&[(
        "a port that is none",
        "[apps.a]\nisolation = { connect_ports = [\"65536\"] }\n",
        &[
            "penstock.toml:2:32: `connect_ports` cannot be \"65536\": expected a port such as \"5432\"",
        ],
    )]);
}
