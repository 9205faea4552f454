//! Included files and variables: what they give together, and where their mistakes are.

use std::ffi::OsString;
use std::path::Path;

use crate::findings::ReadFlags;
use crate::model::Processes;
use crate::parse::parse_with_variables;
use crate::testing::TestDir;
use crate::variables::Variables;
use crate::{Config, ConfigErrors};

const MAIN: &str = "[server]\ninclude = [\"sites/*.toml\"]\n[apps.a]\n";

fn environment(name: &str) -> Option<OsString> {
    match name {
        "WEB_HOST" => Some("example.com".into()),
        "WORKERS" => Some("3".into()),
        "HOSTILE" => Some("x\"\n[server]\nlisten = [\":1\"] {client}".into()),
        "KEY" => Some("s3cret".into()),
        _ => None,
    }
}

fn parse(folder: &TestDir, text: &str) -> Result<Config, ConfigErrors> {
    let variables = Variables::from_environment(environment);
    let origin = folder.join("penstock.toml");
    parse_with_variables(text, &origin, ReadFlags::default(), variables)
}

fn parse_valid(folder: &TestDir, text: &str) -> Config {
    parse(folder, text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn error_lines(folder: &TestDir, text: &str) -> Vec<String> {
    match parse(folder, text) {
        Ok(_) => panic!("no error: {text}"),
        Err(errors) => folder.error_lines(&errors),
    }
}

fn site(host: &str) -> String {
    format!("[[sites]]\nhosts = [\"{host}\"]\n[[sites.routes]]\napp = \"a\"\n")
}

#[test]
fn puts_the_tables_of_all_files_together() {
    let folder = TestDir::with_sample_site();
    folder.add("sites/20-b.toml", &site("b.example"));
    folder.add("sites/10-a.toml", &site("a.example"));
    folder.add("sites/notes.txt", "not read");
    folder.add(
        "sites/30-up.toml",
        "[upstreams.u]\nservers = [\"unix:x.sock\"]\n[limits]\nheaders = 50\n[server]\ninclude = \
         [\"more/own.toml\"]\n",
    );
    folder.add(
        "more/own.toml",
        "[apps.b]\ndir = \"more\"\nentry = \"app.py\"\nkind = \"rack\"\n",
    );
    folder.add("more/own.toml", "[apps.b]\ndir = \"rack\"\n");
    let text = format!("{MAIN}{}", site("main.example"));
    let config = parse_valid(&folder, &text);
    let hosts: Vec<_> = config
        .sites
        .iter()
        .map(|site| site.hosts[0].to_string())
        .collect();
    assert_eq!(hosts, ["main.example", "a.example", "b.example"]);
    assert_eq!(config.limits.max_headers, 50);
    let names: Vec<_> = config.apps.keys().collect();
    assert_eq!(names, ["a", "b"]);
    // Relative to the main file, wherever the text stands.
    assert_eq!(config.apps["b"].dir, folder.join("rack"));
    let address = format!("unix:{}", folder.join("x.sock").display());
    assert_eq!(
        config.upstreams["u"].servers[0].address.to_string(),
        address
    );
    let sources = &config.sources;
    assert!(sources.contains(&folder.join("more/own.toml")));
    assert!(sources.contains(&folder.join("sites/40-new.toml")));
    assert!(!sources.contains(&folder.join("sites/notes.txt")));
    let folders = [
        folder.path().to_owned(),
        folder.join("more"),
        folder.join("sites"),
    ];
    assert_eq!(sources.folders(), folders);
}

#[test]
fn a_file_is_read_once_and_a_pattern_may_match_nothing() {
    let folder = TestDir::with_sample_site();
    assert_eq!(parse_valid(&folder, MAIN).sites.len(), 1);
    folder.add("sites/a.toml", &site("a.example"));
    let text = "[server]\ninclude = [\"sites/a.toml\", \"sites/*.toml\", \"*.toml\", \
                \"./sites/../sites/a.toml\"]\n[apps.a]\n";
    folder.add("penstock.toml", text);
    assert_eq!(parse_valid(&folder, text).sites.len(), 1);
}

#[test]
fn names_the_file_and_the_line_of_a_mistake() {
    let folder = TestDir::with_sample_site();
    folder.add("sites/a.toml", "\n[limits]\nbodybytes = 1\n");
    folder.add(
        "sites/b.toml",
        &format!(
            "{}\n[apps.b]\nprocesses = \"${{WORKERS}}x\"\n",
            site("c.example")
        ),
    );
    let text = format!("{MAIN}[limits]\n{}", site("c.example"));
    let lines = error_lines(&folder, &text);
    assert_eq!(
        lines,
        ["sites/a.toml:2:2: `limits` stands there already: on line 4 of penstock.toml"]
    );
    let text = format!("{MAIN}{}", site("c.example"));
    let lines = error_lines(&folder, &text);
    assert_eq!(
        lines,
        [
            "sites/a.toml:3:1: unknown key `bodybytes` in [limits]; did you mean `body_bytes`?",
            "sites/b.toml:2:10: host c.example is already taken by the site on line 5 of penstock.toml",
            "sites/b.toml:7:13: `processes` cannot be \"3x\": expected a number from 1 to 1024",
        ]
    );
}

/// The main file, the other files, and the errors.
type IncludeRow = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

#[test]
fn reports_what_cannot_be_included() {
    let deep: String = (0..12)
        .map(|n| format!("d{n}.toml"))
        .collect::<Vec<_>>()
        .join(" ");
    let rows: &[IncludeRow] = &[
        (
            "[server]\ninclude = [\"none.toml\"]\n",
            &[],
            &["penstock.toml:2:12: `include`: none.toml does not exist"],
        ),
        (
            "[server]\ninclude = [\"sites\"]\n",
            &[("sites/", "")],
            &[
                "penstock.toml:2:12: `include`: sites is a folder: name its files, as in \"sites/*.toml\"",
            ],
        ),
        (
            "[server]\ninclude = [\"\"]\n",
            &[],
            &["penstock.toml:2:12: `include` needs a path"],
        ),
        (
            "[server]\ninclude = \"a.toml\"\n[apps.a]\n",
            &[],
            &[
                "penstock.toml:2:11: `include` must be a list, each a path or a pattern such as \"sites/*.toml\", not a string",
            ],
        ),
        (
            "[server]\ninclude = [\"a.toml\"]\n",
            &[
                ("a.toml", "[server]\ninclude = [\"b.toml\"]\n"),
                ("b.toml", "[server]\ninclude = [\"a.toml\"]\n"),
            ],
            &["b.toml:2:12: `include`: a.toml includes itself"],
        ),
        (
            "[server]\ninclude = [\"a.toml\"]\n",
            &[("a.toml", "x = [\n")],
            &["a.toml:1:5: not valid TOML: the list that begins here has no `]`"],
        ),
        (
            "[server]\ninclude = [\"a.toml\"]\n[apps.x]\n",
            &[("a.toml", "[server]\nthreads = 2\ninclude = 1\n[apps.x]\n")],
            &[
                "a.toml:2:1: `threads` of [server] stands in the main file: an included file has nothing but `include` there",
                "a.toml:3:11: `include` must be a list of paths",
                "a.toml:4:7: [apps.x] stands there already: on line 3 of penstock.toml",
            ],
        ),
        (
            "[server]\ninclude = [\"a.toml\"]\n",
            &[("a.toml", "x = 1\nx = 2\n")],
            &["a.toml:2:1: not valid TOML: duplicate key"],
        ),
    ];
    for (text, files, expected) in rows {
        let folder = TestDir::with_sample_site();
        files.iter().for_each(|(name, text)| folder.add(name, text));
        let lines = error_lines(&folder, text);
        for (line, expected) in lines.iter().zip(*expected) {
            let start = expected.split(" TOML").next().unwrap();
            assert!(line.starts_with(start), "{text}: {line}");
        }
        assert_eq!(lines.len(), expected.len(), "{text}: {lines:?}");
    }
    let folder = TestDir::with_sample_site();
    for (index, name) in deep.split(' ').enumerate() {
        let next = index + 1;
        folder.add(name, &format!("[server]\ninclude = [\"d{next}.toml\"]\n"));
    }
    let lines = error_lines(&folder, "[server]\ninclude = [\"d0.toml\"]\n");
    assert_eq!(
        lines,
        ["d7.toml:2:12: `include`: d8.toml is included by more than 8 files in a row"]
    );
}

#[test]
fn variables_stand_in_every_text() {
    let folder = TestDir::with_sample_site();
    folder.add(
        "web.env",
        "APP=a\nWEB_HOST=other\nBUFFERED=false\nSIZE=2MiB\nFOLDER=sites\n",
    );
    folder.add("sites/a.toml", &site("${WEB_HOST}"));
    let text = r#"
[server]
env_file = "web.env"
include = ["${FOLDER}/*.toml"]
access_log = "${LOG:-off}"
[limits]
body_bytes = "${SIZE}"
headers = "${HEADERS:-77}"
[apps.a]
processes = "${WORKERS}"
gc_when_idle = "${BUFFERED}"
env = { HOST = "https://${WEB_HOST}/", PLAIN = "$${HOST}", HOSTILE = "${HOSTILE}" }
"#;
    let config = parse_valid(&folder, text);
    assert_eq!(config.sites[0].hosts[0].to_string(), "example.com");
    assert_eq!(config.limits.max_body_size, 2 << 20);
    assert_eq!(config.limits.max_headers, 77);
    let app = &config.apps["a"];
    assert_eq!(app.processes, Processes::exactly(3));
    assert_eq!(app.env["HOST"], "https://example.com/");
    assert_eq!(app.env["PLAIN"], "${HOST}");
    // What looks like TOML is a text all the same.
    assert_eq!(
        app.env["HOSTILE"].as_str(),
        environment("HOSTILE").unwrap().to_str().unwrap()
    );
    assert_eq!(config.server.listen.len(), 1);
    assert!(config.sources.contains(&folder.join("web.env")));

    let text = text.replace("\"web.env\"", "{ path = \"web.env\", override = true }");
    let config = parse_valid(&folder, &text);
    assert_eq!(config.sites[0].hosts[0].to_string(), "other");
    let text = "[server]\nenv_file = { path = \"none.env\", optional = true }\n[apps.a]\n";
    parse_valid(&folder, text);
}

#[test]
fn names_the_variable_that_is_missing_and_no_value() {
    let folder = TestDir::with_sample_site();
    folder.add("bad.env", "A=1\nB C=s3cret\n");
    let unset = "the variable `NONE` is not set: set it in the environment or in the file of \
                 `env_file` in [server], or write a default, as in `${NONE:-default}`";
    let here = |place: &str| format!("penstock.toml:{place}: {unset}");
    let rows = [
        ("[apps.a]\nenv = { A = \"x${NONE}\" }\n", here("2:15")),
        ("[apps.a]\ndir = \"${NONE}\"\nqueue = 1\n", here("2:8")),
        (
            "[server]\nenv_file = \"bad.env\"\n[apps.a]\n",
            "bad.env:2:1: expected `NAME=value`, with a name of letters, digits and `_`, or a \
             comment behind `#`"
                .to_owned(),
        ),
        (
            "[server]\nenv_file = \"none.env\"\n[apps.a]\n",
            "penstock.toml:2:12: `env_file`: none.env does not exist".to_owned(),
        ),
        (
            "[apps.a]\nenv_file = \"bad.env\"\n",
            "penstock.toml:2:12: `env_file`: bad.env, line 2: expected `NAME=value`, with a name \
             of letters, digits and `_`, or a comment behind `#`"
                .to_owned(),
        ),
        (
            "[server]\nredis = \"redis:${KEY}\"\n[apps.a]\n",
            format!(
                "penstock.toml:2:9: `redis` (not shown) cannot be used: expected {}",
                crate::server::REDIS_EXPECTED
            ),
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(error_lines(&folder, text), [expected], "{text}");
    }
}

#[test]
fn an_application_has_a_file_of_variables_of_its_own() {
    let folder = TestDir::with_sample_site();
    folder.add(
        ".env",
        "export GREETING='hello # you'\nA=file\nPATH=/nowhere\n",
    );
    let config = parse_valid(
        &folder,
        "[apps.a]\nenv_file = \".env\"\nenv = { A = \"own\" }\n",
    );
    let env = &config.apps["a"].env;
    assert_eq!(env["GREETING"], "hello # you");
    assert_eq!(env["A"], "own");
    assert_eq!(env.get("PATH"), None, "the environment of the server stays");
    assert!(config.sources.contains(Path::new(&folder.join(".env"))));
}
