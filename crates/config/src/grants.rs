//! What a back end's responses may ask of the front end: `grip` and `sendfile`.
//!
//! Called by `app`, `upstream` and `route`, which have the same keys.
//!
//! # Invariants
//! - Nothing is granted that no key says.
//! - A namespace of channels is shared only by those that name it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::HUB_NAMESPACE_TAKEN;
use crate::findings::LocatedValue;
use crate::hub::read_origins;
use crate::model::{App, Grip, HUB_NAMESPACE, Sendfile};
use crate::parse::report_unusable_dir;
use crate::section::{Section, is_valid_name};

/// What a message says was expected of a namespace.
pub(crate) const NAMESPACE_EXPECTED: &str =
    "a name of letters, digits, `-`, `_` and `.`, of at most 64 characters";

/// Reads `grip` of the back end `name`: a flag, or a table that is `true` and says more. Its own
/// name as its namespace must not be that of one of `apps`.
pub(crate) fn read_grip(
    table: &Section<'_>,
    name: &str,
    apps: &BTreeMap<String, App>,
) -> Option<Grip> {
    let mut grip = Grip::new(name);
    let mut has_namespace = false;
    if table.is_table("grip") {
        let inner = table.table("grip")?;
        grip.origins = read_origins(&inner);
        grip.presence = inner.get("presence").unwrap_or_default();
        if let Some(namespace) = read_namespace(&inner) {
            grip.namespace = namespace;
        }
        has_namespace = inner.has("namespace");
    } else if !table.get::<bool>("grip")? {
        return None;
    }
    if !has_namespace {
        check_namespace(table, name, apps);
    }
    Some(grip)
}

/// Reports a back end that cannot have its name as namespace, because others have that: the routes
/// with `hub`, or an application of the name of an upstream.
pub(crate) fn check_namespace(table: &Section<'_>, name: &str, apps: &BTreeMap<String, App>) {
    if name == HUB_NAMESPACE {
        table.report_key("grip", HUB_NAMESPACE_TAKEN);
    } else if apps.contains_key(name) {
        let problem = format!(
            "an application is called `{name}` too, and their channels are not to be one by \
             accident: say `grip = {{ namespace = \"...\" }}`"
        );
        table.report_key("grip", problem);
    }
}

/// Reads the name of a namespace.
pub(crate) fn read_namespace(table: &Section<'_>) -> Option<String> {
    let read = |text: &str| is_valid_name(text).then(|| text.to_owned());
    let namespace = table.parse_text("namespace", read)?;
    Some(namespace.value)
}

/// Reads `sendfile`: a flag, or a list of directories; none where it is not set.
pub(crate) fn read_sendfile(table: &Section<'_>) -> Option<Sendfile> {
    if !table.is_list("sendfile") {
        let is_followed = table.get("sendfile")?;
        return Some(Sendfile {
            is_enabled: is_followed,
            dirs: Vec::new(),
        });
    }
    let read = |text: &str| (!text.is_empty()).then(|| table.findings.resolve_path(text));
    let folders = table.list("sendfile", read)?;
    let is_usable = |folder: &LocatedValue<PathBuf>| report_unusable_dir(table, "sendfile", folder);
    let folders = folders.into_iter().filter(is_usable);
    Some(Sendfile {
        is_enabled: true,
        dirs: folders.map(|folder| folder.value).collect(),
    })
}

/// Reads `sendfile` of a back end, and `sendfile_root`, which names one directory of it.
pub(crate) fn read_sendfile_and_root(table: &Section<'_>) -> Sendfile {
    let mut sendfile = read_sendfile(table).unwrap_or_default();
    if let Some(root) = read_sendfile_root(table) {
        sendfile.is_enabled = true;
        sendfile.dirs.extend(root.dirs);
    }
    sendfile
}

/// Reads `sendfile_root` alone.
pub(crate) fn read_sendfile_root(table: &Section<'_>) -> Option<Sendfile> {
    let root = table.path("sendfile_root")?;
    report_unusable_dir(table, "sendfile_root", &root);
    Some(Sendfile {
        is_enabled: true,
        dirs: vec![root.value],
    })
}

#[cfg(test)]
mod tests {
    use crate::model::{Config, Sendfile};
    use crate::testing::{TestDir, parse_in_dir, parse_valid};

    fn app(folder: &TestDir, keys: &str) -> Config {
        parse_valid(folder, &format!("[apps.hello]\n{keys}\n"))
    }

    #[test]
    fn nothing_is_granted_unless_it_is_set() {
        let folder = TestDir::with_sample_site();
        for keys in ["", "grip = false", "sendfile = false"] {
            let config = app(&folder, keys);
            assert_eq!(config.apps["hello"].grip, None, "{keys}");
            assert!(!config.apps["hello"].sendfile.is_enabled, "{keys}");
        }
    }

    #[test]
    fn grip_is_a_flag_or_a_table() {
        let folder = TestDir::with_sample_site();
        let grip = |keys| app(&folder, keys).apps["hello"].grip.clone().unwrap();
        assert_eq!(grip("grip = true").namespace, "hello");
        assert_eq!(grip("grip = {}").namespace, "hello");
        let settings = grip(
            "grip = { namespace = \"chat\", origins = [\"https://A.example\"], presence = true }",
        );
        assert!(settings.presence);
        assert_eq!(settings.namespace, "chat");
        assert_eq!(settings.origins, ["https://a.example"]);
    }

    #[test]
    fn sendfile_is_a_flag_or_a_list_of_folders() {
        let folder = TestDir::with_sample_site();
        let sendfile = |keys| app(&folder, keys).apps["hello"].sendfile.clone();
        let expected = |folders: &[&str]| Sendfile {
            is_enabled: true,
            dirs: folders
                .iter()
                .map(|each| folder.path().join(each))
                .collect(),
        };
        assert_eq!(sendfile("sendfile = true"), expected(&[]));
        assert_eq!(sendfile("sendfile = [\"public\"]"), expected(&["public"]));
        assert_eq!(
            sendfile("sendfile_root = \"public\""),
            expected(&["public"])
        );
    }

    #[test]
    fn what_cannot_be_granted_is_told() {
        let folder = TestDir::with_sample_site();
        for (text, expected) in [
            (
                "[apps.hello]\ngrip = { namespace = \"a b\" }\n",
                "expected a name of letters",
            ),
            ("[apps.hello]\ngrip = { origins = [\"x\"] }\n", "origins"),
            (
                "[apps.hello]\ngrip = \"yes\"\n",
                "must be true, false, or a table",
            ),
            ("[apps.hello]\nsendfile = [\"gone\"]\n", "gone"),
            ("[apps.hello]\nsendfile = \"public\"\n", "a list"),
            (
                "[apps.hub]\nentry = \"app:app\"\ngrip = true\n",
                "routes with `hub`",
            ),
            (
                "[apps.hello]\n[upstreams.hello]\nservers = [\"127.0.0.1:1\"]\ngrip = true\n\
                 [[sites]]\n[[sites.routes]]\nupstream = \"hello\"\n",
                "an application is called `hello` too",
            ),
            (
                "[apps.hello]\n[[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\ngrip = true\n",
                "grip",
            ),
        ] {
            let report = parse_in_dir(&folder, text).unwrap_err().to_string();
            assert!(report.contains(expected), "{text}: {report}");
        }
    }

    #[test]
    fn a_route_says_for_itself_what_is_granted() {
        let folder = TestDir::with_sample_site();
        let text = "[apps.hello]\ngrip = true\nsendfile = true\n[[sites]]\n[[sites.routes]]\n\
                    path = \"/a\"\napp = \"hello\"\ngrip = false\nsendfile = [\"public\"]\n\
                    [[sites.routes]]\napp = \"hello\"\n";
        let routes = &parse_valid(&folder, text).sites[0].routes;
        assert_eq!(routes[0].grip, Some(false));
        assert_eq!(routes[0].sendfile.as_ref().unwrap().dirs.len(), 1);
        assert_eq!(routes[1].grip, None);
        assert_eq!(routes[1].sendfile, None);
    }
}
