//! A complete scenario, and every possible error with its position.

use super::*;

const WHOLE: &str = r#"
title = "All there is"
first = "b"
setup = ["./setup {{here}} {{cache}}"]
rounds = 2
cores = { server = 0, load = 1 }
ready_timeout = "5s"

[load]
paths = ["/a", "/b?c=d"]
order = "random"
connections = { from = 1, to = 31, step = 10 }
requests = 1000
warm_up = "500ms"
cool_down = "1s"
keepalive = false
method = "POST"
headers = { "X-A" = "y" }
body_file = "body.txt"
timeout = "2s"
rate = 1000
expect = { status = 201, contains = "Hello" }

[[deployments]]
name = "a"
start = ["exec a -b {{port2}}", "exec b"]
files = { "sub/a.conf" = "listen {{port}} {{dir}}" }
env = { A = "{{root}}" }
url = "unix:{{dir}}/a.sock"
versions = ["a -v"]
memory = "600MB"
disk_read = "100MB/s"

[[deployments]]
name = "b"
start = ["exec {{penstock}}"]

[[goals]]
deployment = "a"
cpu_ratio = 0.5
to = "b"

[[goals]]
deployment = "b"
p99_ms = 5

[[goals]]
deployment = "b"
connections = 21
errors = 0

[beside]
start = ["exec c {{port3}}"]
files = { "c.conf" = "listen {{port3}}" }
url = "unix:{{dir}}/c.sock"
"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new("s.toml"), Path::new("/here"))
}

#[test]
fn reads_a_whole_scenario() {
    let scenario = parse(WHOLE).unwrap();
    assert_eq!(scenario.title, "All there is");
    assert_eq!((&*scenario.reference, scenario.rounds), ("b", 2));
    assert_eq!(scenario.cores, Some(CoreAssignment { server: 0, load: 1 }));
    assert_eq!(scenario.until, WindowEnd::Requests(1000));
    assert_eq!(scenario.warm_up, Duration::from_millis(500));
    assert_eq!(scenario.cool_down, Duration::from_secs(1));
    let Loads::Sweep { connections, load } = &scenario.loads else {
        panic!("{:?}", scenario.loads);
    };
    assert_eq!(connections, &[1, 11, 21, 31]);
    let paths = Paths::Named(vec!["/a".to_owned(), "/b?c=d".to_owned()]);
    assert_eq!((&load.paths, load.order), (&paths, RequestOrder::Random));
    assert_eq!((load.rate, load.keepalive), (Some(1000.0), false));
    assert_eq!(load.expect.body, ExpectedBody::Contains("Hello".to_owned()));
    let a = &scenario.deployments[0];
    assert_eq!(
        (a.memory, a.disk_read),
        (Some(600_000_000), Some(100_000_000))
    );
    assert_eq!(scenario.deployments[1].url, "http://127.0.0.1:{{port}}");
    assert_eq!(scenario.goals[0].names(), ["a", "b"]);
    assert_eq!(scenario.goals[1].bound, GoalBound::P99Ms(5.0));
    assert_eq!(scenario.goals[1].connections, None);
    assert_eq!(scenario.goals[2].bound, GoalBound::Errors(0));
    assert_eq!(scenario.goals[2].connections, Some(21));
    let beside = scenario.companion.unwrap();
    assert_eq!(beside.start, ["exec c {{port3}}"]);
    assert_eq!(beside.url, "unix:{{dir}}/c.sock");
    assert_eq!(beside.files.len(), 1);
}

#[test]
fn fills_in_defaults() {
    let text = "title = 'x'\n[load]\nconnections = 3\nduration = '4s'\n\
                [[deployments]]\nname = 'a'\nstart = ['b']\n";
    let scenario = parse(text).unwrap();
    assert_eq!((&*scenario.reference, scenario.rounds), ("a", 3));
    assert!(!scenario.keep_running);
    assert_eq!(scenario.ready_timeout, Duration::from_secs(20));
    assert_eq!(scenario.until, WindowEnd::Elapsed(Duration::from_secs(4)));
    assert_eq!(scenario.warm_up, Duration::from_secs(1));
    let load = scenario.loads.first().unwrap();
    assert_eq!(load.paths, Paths::Named(vec!["/".to_owned()]));
    assert_eq!((&*load.method, load.keepalive), ("GET", true));
    assert_eq!(load.expect.status, 200);
}

#[test]
fn reads_a_mix() {
    let text = "title = 'x'\n\
        [[loads]]\nname = 'hot'\nconnections = 50\nduration = '20s'\n\
        [[loads]]\nname = 'random'\npaths_file = '{{cache}}/list'\nconnections = 200\nwarm_up = '2s'\n\
        [[deployments]]\nname = 'a'\nstart = ['b']\n";
    let scenario = parse(text).unwrap();
    let Loads::Mix(loads) = &scenario.loads else {
        panic!("{:?}", scenario.loads);
    };
    let found: Vec<_> = loads
        .iter()
        .map(|(count, load)| (*count, &*load.name))
        .collect();
    assert_eq!(found, [(50, "hot"), (200, "random")]);
    assert_eq!(loads[1].1.paths, Paths::File("{{cache}}/list".to_owned()));
    assert_eq!(scenario.warm_up, Duration::from_secs(2));
    assert_eq!(scenario.loads.iter().count(), 2);
}

/// A mix has one point, so its goals need not name it.
#[test]
fn a_goal_of_a_mix_names_no_point() {
    let text = "title = 'x'\n[[loads]]\nname = 'hot'\nconnections = 50\nduration = '20s'\n\
        [[deployments]]\nname = 'a'\nstart = ['b']\n\
        [[goals]]\ndeployment = 'a'\nerrors = 0\nconnections = 50\n";
    let error = parse(text).map(drop).unwrap_err().to_string();
    assert!(error.contains("no point"), "{error}");
}

#[test]
fn connections_are_numbers_lists_and_ranges() {
    let found = |connections: &str| {
        let text = WHOLE.replace("{ from = 1, to = 31, step = 10 }", connections);
        let text = text.replace("connections = 21\n", "");
        match parse(&text).map(|scenario| scenario.loads) {
            Ok(Loads::Sweep { connections, .. }) => Some(connections),
            _ => None,
        }
    };
    for (text, expected) in [
        ("7", Some(vec![7])),
        ("[16, 128]", Some(vec![16, 128])),
        (
            "{ from = 1, to = 20, factor = 2 }",
            Some(vec![1, 2, 4, 8, 16]),
        ),
        ("{ from = 5, to = 5, step = 1 }", Some(vec![5])),
        (
            "{ from = 1, to = 4, factor = 1.0000001 }",
            Some(vec![1, 2, 3, 4]),
        ),
        ("[]", None),
        ("[0]", None),
        ("0", None),
        ("-1", None),
        ("[1, 99999]", None),
        ("'a'", None),
        ("{ from = 1, to = 9 }", None),
        ("{ from = 1, to = 9, step = 1, factor = 2 }", None),
        ("{ from = 1, to = 9, step = 0 }", None),
        ("{ from = 1, to = 9, factor = 1 }", None),
        ("{ from = 1, to = 9, factor = nan }", None),
        ("{ from = 9, to = 1, step = 1 }", None),
        ("{ from = 0, to = 9, step = 1 }", None),
        ("{ from = 1, to = 60000, step = 1 }", None),
        ("{ from = 1, to = 4000000000, factor = 2 }", None),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

/// Each row makes one error in the complete scenario: the replaced text, the replacement, the
/// position of the error, and a part of its message.
#[test]
fn every_mistake_is_named_with_its_place() {
    let second = "name = \"b\"\n";
    for (old, new, place, says) in [
        ("title = \"All there is\"", "", "1:1", "title"),
        (
            "title = \"All there is\"",
            "title = \" \"",
            "2:9",
            "not empty",
        ),
        ("title = \"All there is\"", "title = 4", "2:9", "string"),
        ("rounds = 2", "rounds = 0", "5:10", "at least 1"),
        ("rounds = 2", "round = 2", "5:1", "unknown field `round`"),
        (
            "first = \"b\"",
            "first = \"c\"",
            "3:9",
            "no deployment is named `c`",
        ),
        ("\"5s\"", "\"5\"", "7:17", "duration"),
        ("\"5s\"", "\"366d\"", "7:17", "at most a year"),
        ("{{cache}}", "{{cash}}", "4:10", "no placeholder {{cash}}"),
        ("{{cache}}", "{{port}}", "4:10", "no placeholder {{port}}"),
        ("server = 0,", "", "6:9", "server"),
        (
            "paths = [\"/a\", \"/b?c=d\"]",
            "paths = []",
            "10:9",
            "at least one path",
        ),
        ("\"/a\"", "\"a\"", "10:10", "slash"),
        ("\"/a\"", "\"/a b\"", "10:10", "blanks"),
        ("\"/a\"", "\"/\u{e4}\"", "10:10", "not ASCII"),
        ("paths = [", "path = \"/\"\npaths = [", "9:1", "not several"),
        ("\"random\"", "\"any\"", "11:9", "in order"),
        ("requests = 1000\n", "", "9:1", "missing"),
        ("requests = 1000", "requests = 0", "13:12", "at least 1"),
        (
            "requests = 1000",
            "requests = 1\nduration = '1s'",
            "14:12",
            "not both",
        ),
        (
            "requests = 1000",
            "duration = '0s'",
            "13:12",
            "longer than 0",
        ),
        ("\"500ms\"", "\"half a second\"", "14:11", "duration"),
        ("\"POST\"", "\"PO ST\"", "17:10", "method"),
        ("\"X-A\"", "\"X A\"", "18:13", "field name"),
        ("= \"y\"", "= \"y\\r\\nz: a\"", "18:21", "line breaks"),
        (
            "timeout = \"2s\"",
            "timeout = \"0s\"",
            "20:11",
            "longer than 0",
        ),
        ("rate = 1000", "rate = 0", "21:8", "above 0"),
        (
            "rate = 1000",
            "rate = 10000001",
            "21:8",
            "at most 10000000 a second",
        ),
        ("status = 201", "status = 99", "22:21", "200 to 599"),
        (
            "contains =",
            "body = \"a\", contains =",
            "22:10",
            "not both",
        ),
        (second, "name = \"a\"\n", "35:8", "a second deployment `a`"),
        (
            "start = [\"exec {{penstock}}\"]",
            "",
            "34:1",
            "`start` is missing",
        ),
        (
            "{{penstock}}",
            "{{penstok}}",
            "36:10",
            "no placeholder {{penstok}}",
        ),
        ("\"sub/a.conf\"", "\"../a.conf\"", "27:11", "below {{dir}}"),
        (
            "\"sub/a.conf\"",
            "\"/etc/a.conf\"",
            "27:11",
            "below {{dir}}",
        ),
        (
            "\"unix:{{dir}}/a.sock\"",
            "\"https://a\"",
            "29:7",
            "expected http",
        ),
        ("\"600MB\"", "\"600\"\nmemori = 1", "32:1", "memori"),
        ("\"600MB\"", "\"much\"", "31:10", "size"),
        ("\"100MB/s\"", "\"100MB\"", "32:13", "rate"),
        ("cpu_ratio = 0.5", "", "38:1", "one of `cpu_ratio`"),
        ("cpu_ratio = 0.5", "cpu_ratio = inf", "40:13", "above 0"),
        ("to = \"b\"", "", "38:1", "a ratio needs `to`"),
        (
            "to = \"b\"",
            "to = \"z\"",
            "41:6",
            "no deployment is named `z`",
        ),
        (
            "p99_ms = 5",
            "p99_ms = 5\nto = \"a\"",
            "46:6",
            "belongs to a ratio",
        ),
        (
            "p99_ms = 5",
            "requests_held = 0.9\nto = \"a\"",
            "46:6",
            "belongs to a ratio",
        ),
        (
            "errors = 0",
            "errors = 0\np99_ms = 5",
            "47:1",
            "one of `cpu_ratio`",
        ),
        (
            "p99_ms = 5",
            "memory_ratio = 0.5",
            "43:1",
            "a ratio needs `to`",
        ),
        (
            "p99_ms = 5",
            "p99_ratio = 1.0\nto = \"a\"",
            "43:1",
            "it needs `load`",
        ),
        (
            "p99_ms = 5",
            "p99_ratio = 1.0\nto = \"a\"\nload = \"z\"",
            "47:8",
            "no load has that name",
        ),
        ("errors = 0", "errors = -1", "50:10", "u64"),
        ("connections = 21", "connections = 22", "49:15", "no point"),
        ("errors = 0", "requests_held = 0.9", "49:15", "all points"),
        (
            "start = [\"exec c {{port3}}\"]",
            "",
            "52:1",
            "`start` is missing",
        ),
        ("{{dir}}/c.sock", "{{dri}}/c.sock", "55:7", "no placeholder"),
        (
            "url = \"unix:{{dir}}/c.sock\"",
            "",
            "52:1",
            "missing field `url`",
        ),
        ("[load]", "[lod]", "9:2", "unknown field `lod`"),
        ("[[goals]]", "[[goals", "38:8", ""),
    ] {
        let text = WHOLE.replacen(old, new, 1);
        assert_ne!(text, WHOLE, "{old}");
        let error = parse(&text).map(|_| ()).unwrap_err().to_string();
        let begin = format!("s.toml:{place}: ");
        assert!(
            error.starts_with(&begin),
            "{old} -> {new}: expected {place}: {error}"
        );
        assert!(
            error.contains(says),
            "{old} -> {new}: expected {says:?}: {error}"
        );
    }
}

#[test]
fn mixes_that_disagree_are_refused() {
    let mix = |first: &str, second: &str| {
        let text = format!(
            "title = 'x'\n[[loads]]\n{first}\n[[loads]]\n{second}\n\
             [[deployments]]\nname = 'a'\nstart = ['b']\n"
        );
        parse(&text).map(|_| ()).unwrap_err().to_string()
    };
    for (first, second, says) in [
        (
            "name='a'\nconnections=1\nduration='1s'",
            "name='b'\nconnections=1\nduration='2s'",
            "9:10: another load",
        ),
        (
            "name='a'\nconnections=1\nduration='1s'",
            "name='b'\nconnections=1\nrequests=2",
            "9:10: another load",
        ),
        (
            "name='a'\nconnections=1\nduration='1s'",
            "name='a'\nconnections=1",
            "7:6: a second load `a`",
        ),
        (
            "name='a'\nconnections=1\nduration='1s'",
            "connections=1",
            "6:1: a load of several",
        ),
        (
            "name='a'\nconnections=[1]\nduration='1s'",
            "name='b'\nconnections=1",
            "4:13: one number",
        ),
        (
            "name='a'\nconnections=1",
            "name='b'\nconnections=1",
            "2:1: `requests`",
        ),
    ] {
        let error = mix(first, second);
        assert!(error.contains(says), "{first} + {second}: {error}");
    }
}

#[test]
fn broken_texts_are_errors() {
    for text in [
        "",
        "\u{0}",
        "title = \"ä",
        "=",
        "[[",
        "title = 'x'\n[load]\n[[loads]]",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
    let missing = Scenario::read(Path::new("/nowhere/a.toml")).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/a.toml: "));
}

#[test]
fn the_scenarios_of_the_repository_are_whole() {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches");
    let folders = ["scenarios", "training"].map(|folder| benches.join(folder));
    let mut count = 0;
    for entry in folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten())
    {
        let path = entry.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            Scenario::read(&path).unwrap_or_else(|error| panic!("{error}"));
            count += 1;
        }
    }
    assert!(count > 1);
}
