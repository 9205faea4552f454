//! PHP in a folder: `index.php`, here or in the folder that frameworks publish.
//!
//! Used by `programs`. PHP runs under php-fpm, else php-cgi; in development its own server will do.

use std::path::{Path, PathBuf};

use super::programs::{DetectedProgram, find_program, usual_children};
use crate::cores::usable_cpus;
use crate::disk;
use crate::model::AppKind;

/// The script of every path that is no other's.
const INDEX: &str = "index.php";

/// The page of a static site.
const PAGE: &str = "index.html";

/// Folders that hold it, the first before the others; the last is the folder itself.
const ROOTS: [&str; 3] = ["public", "web", ""];

/// Folders of Debian's daemons and programs, whose names end in PHP's version.
const PROGRAM_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/usr/bin"];

/// The configuration of php-fpm, which it reads from a descriptor: it takes none by its command
/// line. `{socket}` is where it listens, `$0` its program.
const FPM_SCRIPT: &str = r#"
if [ "$(id -u)" = 0 ]; then root=-R user="user = root"; else root= user=; fi
exec "$0" $root -F -y /dev/fd/3 3<<CONF
[global]
error_log = /dev/stderr
daemonize = no
[www]
$user
listen = {socket}
pm = ondemand
pm.max_children = $FPM_CHILDREN
catch_workers_output = yes
decorate_workers_output = no
clear_env = no
CONF
"#;

/// What starts PHP for a folder that has an `index.php`.
///
/// # Errors
/// A sentence: there is no program that could run it.
pub(super) fn detect_php(dir: &Path, development: bool) -> Result<Option<DetectedProgram>, String> {
    let roots = ROOTS.iter().map(|name| dir.join(name));
    // Beside a page it may be a tool: it must not run because a site is served.
    let is_php = |root: &PathBuf| root.join(INDEX).is_file() && !root.join(PAGE).is_file();
    let Some(root) = roots.into_iter().find(is_php) else {
        return Ok(None);
    };
    // `dir.join("")` ends with a slash.
    let root: PathBuf = root.components().collect();
    if let Some(fpm) = find_versioned("php-fpm") {
        return Ok(Some(with_fpm(&fpm, root)));
    }
    if let Some(cgi) = find_versioned("php-cgi") {
        let command = vec![cgi.display().to_string()];
        let title = title(&root, &cgi);
        let counts = (usable_cpus(), 1);
        let program =
            DetectedProgram::of_php((AppKind::FastCgi, command, title), counts, (root, INDEX));
        return Ok(Some(program));
    }
    match find_versioned("php").filter(|_| development) {
        Some(php) => Ok(Some(with_own_server(&php, root))),
        None => Err(format!(
            "{} is a PHP application, and neither php-fpm nor php-cgi is installed: install one \
             (Debian: apt install php-fpm), or try `penstock serve --dev` with php alone",
            root.join(INDEX).display()
        )),
    }
}

/// php-fpm: one process, with children of its own.
fn with_fpm(program: &Path, root: PathBuf) -> DetectedProgram {
    let children = usual_children();
    // As root, php-fpm runs only if it is told so twice, which the script does.
    let script = FPM_SCRIPT.replace("$FPM_CHILDREN", &children.to_string());
    let title = title(&root, program);
    let program = program.display().to_string();
    let command = vec!["/bin/sh".to_owned(), "-c".to_owned(), script, program];
    DetectedProgram::of_php(
        (AppKind::FastCgi, command, title),
        (1, children),
        (root, INDEX),
    )
}

/// PHP's own server, which is for development only. It serves other files of the root, too.
fn with_own_server(program: &Path, root: PathBuf) -> DetectedProgram {
    let words = [
        program.display().to_string(),
        "-S".to_owned(),
        "127.0.0.1:{port}".to_owned(),
        "-t".to_owned(),
        root.display().to_string(),
    ];
    let command = words.into_iter().collect();
    let title = title(&root, program);
    DetectedProgram::of_php((AppKind::Command, command, title), (1, 1), (root, INDEX))
}

/// What the start shows: the script, and the program that runs it.
fn title(root: &Path, program: &Path) -> String {
    format!("{} by {}", root.join(INDEX).display(), program.display())
}

/// A program by its name, or by its name and PHP's version, the newest: `php-fpm8.2`.
fn find_versioned(name: &str) -> Option<PathBuf> {
    if let Some(found) = find_program(name) {
        return Some(found);
    }
    let dirs = PROGRAM_DIRS.iter().map(Path::new);
    let found = dirs.flat_map(|dir| {
        let names = disk::list_files(dir).into_iter();
        let versions = names.filter_map(|file| {
            let version = file.strip_prefix(name)?.to_owned();
            let is_version = version.starts_with(|c: char| c.is_ascii_digit())
                && version.chars().all(|c| c.is_ascii_digit() || c == '.');
            is_version.then_some((version, file))
        });
        versions
            .map(|(version, file)| (version, dir.join(file)))
            .collect::<Vec<_>>()
    });
    found.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn php_is_where_frameworks_publish_it() {
        let rows: [(&[&str], Option<&str>); 5] = [
            (&["index.php"], Some("")),
            (&["index.php", "public/index.php"], Some("public")),
            (&["web/index.php"], Some("web")),
            (&["main.php"], None),
            (&["index.php", "index.html"], None),
        ];
        for (files, expected) in rows {
            let folder = TestDir::with_files(&[]);
            files.iter().for_each(|name| folder.add(name, ""));
            // Which program there is is the machine's matter.
            match (detect_php(folder.path(), false), expected) {
                (Ok(Some(found)), Some(root)) => {
                    let root: PathBuf = folder.join(root).components().collect();
                    assert_eq!(found.root(), Some(root.as_path()));
                }
                (Ok(None), None) => {}
                (Err(problem), Some(_)) => assert!(problem.contains("php-fpm"), "{problem}"),
                (found, _) => panic!("{files:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn php_fpm_gets_its_configuration_by_a_descriptor() {
        let app = with_fpm(Path::new("/usr/sbin/php-fpm8.2"), PathBuf::from("/srv"))
            .into_app("site", Path::new("/srv"));
        assert_eq!(app.command[3], "/usr/sbin/php-fpm8.2");
        let script = &app.command[2];
        for words in [
            "listen = {socket}\n",
            "pm.max_children = ",
            "clear_env = no",
        ] {
            assert!(script.contains(words), "{script}");
        }
        assert!(!script.contains("$FPM"), "{script}");
        let upstream = app.upstream.unwrap();
        assert_eq!(upstream.root, Some(PathBuf::from("/srv")));
        assert_eq!(upstream.index.as_deref(), Some(INDEX));
    }
}
