//! A complete scenario, and every possible error with its position.

use super::*;

const WHOLE: &str = r#"
title = "All there is"
baseline = "b"
setup = ["./setup {{here}} {{cache}}"]
rounds = 2
cores = { server = 0, load = 1 }
ready_timeout = "5s"
requests = 1000
warm_up = "500ms"
cool_down = "1s"

[[loads]]
paths = ["/a", "/b?c=d"]
order = "random"
connections = "1:31:10"
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
metric = "cpu_ratio"
max = 0.5
to = "b"

[[goals]]
deployment = "b"
metric = "p99_ms"
max = 5

[[goals]]
deployment = "b"
connections = 21
metric = "errors"
max = 0

[companion]
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
    assert_eq!((&*scenario.baseline, scenario.rounds), ("b", 2));
    assert_eq!(scenario.cores, Some(CoreAssignment { server: 0, load: 1 }));
    assert_eq!(scenario.window_end(), WindowEnd::Requests(1000));
    assert_eq!(scenario.warm_up, Duration::from_millis(500));
    assert_eq!(scenario.cool_down, Duration::from_secs(1));
    let load = &scenario.loads[0];
    assert_eq!(load.connections.0, [1, 11, 21, 31]);
    assert_eq!(load.paths, ["/a", "/b?c=d"]);
    assert_eq!(load.order, RequestOrder::Random);
    assert_eq!((load.rate, load.keepalive), (Some(1000.0), false));
    assert_eq!((load.expect.status, &load.expect.body), (201, &None));
    assert_eq!(load.expect.contains.as_deref(), Some("Hello"));
    assert_eq!(load.headers, [("X-A".to_owned(), "y".to_owned())]);
    let a = &scenario.deployments[0];
    assert_eq!(
        (a.memory, a.disk_read),
        (Some(600_000_000), Some(100_000_000))
    );
    assert_eq!(scenario.deployments[1].url, "http://127.0.0.1:{{port}}");
    let [ratio, p99, errors] = &scenario.goals[..] else {
        panic!("{:?}", scenario.goals);
    };
    assert!(ratio.names().eq(["a", "b"]));
    assert_eq!((p99.metric, p99.max), (Metric::P99Ms, Some(5.0)));
    assert_eq!((p99.min, p99.connections), (None, None));
    assert_eq!(
        (errors.metric, errors.connections),
        (Metric::Errors, Some(21))
    );
    let companion = scenario.companion.unwrap();
    assert_eq!(companion.start, ["exec c {{port3}}"]);
    assert_eq!(companion.url, "unix:{{dir}}/c.sock");
    assert_eq!(companion.files.len(), 1);
}

#[test]
fn fills_in_defaults() {
    let text = "title = 'x'\nduration = '4s'\n[[loads]]\nconnections = 3\n\
                [[deployments]]\nname = 'a'\nstart = ['b']\n";
    let scenario = parse(text).unwrap();
    assert_eq!((&*scenario.baseline, scenario.rounds), ("a", 3));
    assert!(!scenario.keep_running);
    assert_eq!(scenario.ready_timeout, Duration::from_secs(20));
    assert_eq!(
        scenario.window_end(),
        WindowEnd::Elapsed(Duration::from_secs(4))
    );
    assert_eq!(scenario.warm_up, Duration::from_secs(1));
    let load = &scenario.loads[0];
    assert_eq!(load.connections.0, [3]);
    let values = PlaceholderValues {
        here: "/here".into(),
        root: "/root".into(),
        cache: "/cache".into(),
        penstock: "/penstock".into(),
        start: None,
    };
    assert_eq!(load.read_paths(&values).unwrap(), ["/"]);
    assert_eq!((&*load.method, load.keepalive), ("GET", true));
    assert_eq!(load.expect.status, 200);
}

#[test]
fn reads_a_mix() {
    let text = "title = 'x'\nduration = '20s'\nwarm_up = '2s'\n\
        [[loads]]\nname = 'hot'\nconnections = 50\nalone = true\n\
        [[loads]]\nname = 'random'\npaths_file = '{{cache}}/list'\nconnections = 200\n\
        [[deployments]]\nname = 'a'\nstart = ['b']\n\
        [[goals]]\ndeployment = 'a'\nload = 'hot'\nmetric = 'p99_vs_alone'\nmax = 1.5\n";
    let scenario = parse(text).unwrap();
    let found: Vec<_> = scenario
        .loads
        .iter()
        .map(|load| (load.connections.0[0], &*load.name, load.alone))
        .collect();
    assert_eq!(found, [(50, "hot", true), (200, "random", false)]);
    assert_eq!(
        scenario.loads[1].paths_file.as_deref(),
        Some("{{cache}}/list")
    );
    assert_eq!(scenario.warm_up, Duration::from_secs(2));
    let error = parse(&text.replace("'hot'\nmetric", "'random'\nmetric")).unwrap_err();
    assert!(error.to_string().contains("`alone = true`"), "{error}");
}

/// A mix has one point, so its goals need not name it.
#[test]
fn a_goal_of_a_mix_names_no_point() {
    let text = "title = 'x'\nduration = '20s'\n[[loads]]\nname = 'hot'\nconnections = 50\n\
        [[loads]]\nname = 'b'\nconnections = 50\n\
        [[deployments]]\nname = 'a'\nstart = ['b']\n\
        [[goals]]\ndeployment = 'a'\nmetric = 'errors'\nmax = 0\nconnections = 50\n";
    let error = parse(text).map(drop).unwrap_err().to_string();
    assert!(error.contains("no point"), "{error}");
}

#[test]
fn connections_are_numbers_lists_and_ranges() {
    let found = |connections: &str| {
        let text = WHOLE.replace("\"1:31:10\"", connections);
        let text = text.replace("connections = 21\n", "");
        let scenario = parse(&text).ok()?;
        Some(scenario.loads[0].connections.0.clone())
    };
    for (text, expected) in [
        ("7", Some(vec![7])),
        ("[16, 128]", Some(vec![16, 128])),
        ("'16, 128'", Some(vec![16, 128])),
        ("'1:20:x2'", Some(vec![1, 2, 4, 8, 16])),
        ("'5:5:1'", Some(vec![5])),
        ("[]", None),
        ("[0]", None),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("[1, 99999]", None),
        ("'a'", None),
        ("'1:9'", None),
        ("'9:1:1'", None),
        ("'0:9:1'", None),
        ("'1:60000:1'", None),
        ("'1:4000000000:x2'", None),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

/// Each row makes one error in the complete scenario: the replaced text, the replacement, the
/// position of the error, and a part of its message.
#[test]
fn every_mistake_is_named_with_its_place() {
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
            "baseline = \"b\"",
            "baseline = \"c\"",
            "3:12",
            "no deployment has this name",
        ),
        ("\"5s\"", "\"5\"", "7:17", "duration"),
        ("\"5s\"", "\"366d\"", "7:17", "at most a year"),
        ("{{cache}}", "{{cash}}", "4:10", "no placeholder {{cash}}"),
        ("{{cache}}", "{{port}}", "4:10", "no placeholder {{port}}"),
        ("./setup", "\\u0000", "4:10", "NUL"),
        ("server = 0,", "", "6:9", "server"),
        (
            "requests = 1000\n",
            "",
            "1:1",
            "either `requests` or `duration`",
        ),
        ("requests = 1000", "requests = 0", "8:12", "at least 1"),
        (
            "requests = 1000",
            "requests = 1\nduration = '1s'",
            "9:12",
            "either",
        ),
        (
            "requests = 1000",
            "duration = '0s'",
            "8:12",
            "longer than 0",
        ),
        ("\"500ms\"", "\"half a second\"", "9:11", "duration"),
        ("\"/a\"", "\"a\"", "13:9", "slash"),
        ("\"/a\"", "\"/a b\"", "13:9", "blanks"),
        ("\"/a\"", "\"/\u{e4}\"", "13:9", "not ASCII"),
        ("\"random\"", "\"any\"", "14:9", "sequence"),
        ("\"1:31:10\"", "\"1:31\"", "15:15", "such as"),
        (
            "connections = \"1:31:10\"",
            "",
            "12:1",
            "`connections`: at least one",
        ),
        ("\"POST\"", "\"PO ST\"", "17:10", "method"),
        ("\"X-A\"", "\"X A\"", "18:11", "`X A` is not a field name"),
        ("= \"y\"", "= \"y\\r\\nz: a\"", "18:11", "line breaks"),
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
        ("rate = 1000", "alone = true", "21:9", "alone anyway"),
        ("status = 201", "status = 99", "22:10", "200 to 599"),
        (
            "name = \"b\"\n",
            "name = \"a\"\n",
            "35:8",
            "no other one has",
        ),
        ("start = [\"exec {{penstock}}\"]", "", "34:1", "`start`"),
        (
            "{{penstock}}",
            "{{penstok}}",
            "36:10",
            "no placeholder {{penstok}}",
        ),
        ("\"sub/a.conf\"", "\"../a.conf\"", "27:9", "below {{dir}}"),
        ("\"sub/a.conf\"", "\"/etc/a.conf\"", "27:9", "below {{dir}}"),
        (
            "\"sub/a.conf\"",
            "\"{{dri}}/a.conf\"",
            "27:11",
            "no placeholder",
        ),
        ("{ A =", "{ \"A=B\" =", "28:7", "`A=B` is not the name"),
        (
            "\"unix:{{dir}}/a.sock\"",
            "\"ftp://a\"",
            "29:7",
            "expected http",
        ),
        ("\"600MB\"", "\"600\"\nmemori = 1", "32:1", "memori"),
        ("\"600MB\"", "\"much\"", "31:10", "size"),
        ("\"100MB/s\"", "\"100MB\"", "32:13", "rate"),
        (
            "metric = \"cpu_ratio\"",
            "",
            "38:1",
            "missing field `metric`",
        ),
        (
            "\"cpu_ratio\"",
            "\"speed\"",
            "40:10",
            "expected one of `cpu_ratio`",
        ),
        ("max = 0.5", "", "38:1", "at least one of `max` and `min`"),
        ("max = 0.5", "max = inf", "41:7", "above 0"),
        ("max = 0.5", "min = 0", "41:7", "above 0"),
        ("to = \"b\"", "", "38:1", "the other deployment"),
        (
            "to = \"b\"",
            "to = \"z\"",
            "42:6",
            "no deployment has this name",
        ),
        (
            "max = 5",
            "max = 5\nto = \"a\"",
            "48:6",
            "a ratio, and nothing else",
        ),
        (
            "\"p99_ms\"",
            "\"memory_ratio\"",
            "44:1",
            "a ratio, and nothing else",
        ),
        (
            "\"p99_ms\"",
            "\"p99_ratio\"\nto = \"a\"",
            "44:1",
            "need a load",
        ),
        (
            "\"p99_ms\"",
            "\"p99_ratio\"\nto = \"a\"\nload = \"z\"",
            "48:8",
            "no load has this name",
        ),
        ("max = 0\n", "max = -1\n", "53:7", "above 0"),
        ("connections = 21", "connections = 22", "51:15", "no point"),
        (
            "\"errors\"\nmax = 0",
            "\"throughput_retained\"\nmax = 1",
            "51:15",
            "all points",
        ),
        ("start = [\"exec c {{port3}}\"]", "", "55:1", "`start`"),
        ("{{dir}}/c.sock", "{{dri}}/c.sock", "58:7", "no placeholder"),
        (
            "url = \"unix:{{dir}}/c.sock\"",
            "",
            "55:1",
            "missing field `url`",
        ),
        ("[[loads]]", "[[lods]]", "12:3", "unknown field `lods`"),
        (
            "[[loads]]",
            "tls = { groups = [\"x448\"] }\n[[loads]]",
            "12:7",
            "no key exchange is named \"x448\"",
        ),
        (
            "[[loads]]",
            "tls = { ca = \"a\", insecure = true }\n[[loads]]",
            "12:7",
            "either `ca` or `insecure`",
        ),
        (
            "[[loads]]",
            "tls = { ca = \"{{dir}}/a\" }\n[[loads]]",
            "12:14",
            "no placeholder {{dir}}",
        ),
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
fn loads_that_disagree_are_refused() {
    for (first, second, says) in [
        (
            "name='a'\nconnections=1",
            "name='a'\nconnections=1",
            "7:6: `name`: each",
        ),
        (
            "name='a'\nconnections=1",
            "connections=1",
            "6:1: `name`: each",
        ),
        (
            "name='a'\nconnections=[1, 2]",
            "name='b'\nconnections=1",
            "5:13: `connections`: one number",
        ),
    ] {
        let text = format!(
            "title = 'x'\nduration = '1s'\n[[loads]]\n{first}\n[[loads]]\n{second}\n\
             [[deployments]]\nname = 'a'\nstart = ['b']\n"
        );
        let error = parse(&text).map(|_| ()).unwrap_err().to_string();
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
