//! Error pages by status and class, and their errors.

use crate::options::expected::ONLY_ROUTE_WITH_BACKEND;
use crate::testing::{TestDir, check_error_table, parse_in_dir, parse_valid};

fn site(pages: &str) -> String {
    format!(
        "[[sites]]\nerror_pages = {{ {pages} }}\n[[sites.routes]]\nfiles = {{ root = \"public\" }}\n"
    )
}

#[test]
fn reads_statuses_and_classes() {
    let folder = TestDir::with_sample_site();
    folder.add("errors/404.html", "gone");
    folder.add("e.json", "");
    let text = site("404 = \"errors/404.html\", 5xx = \"e.json\", \"4xx\" = \"errors/404.html\"");
    let pages = &parse_valid(&folder, &text).sites[0].error_pages;
    let expected = [
        (4, folder.join("errors/404.html")),
        (5, folder.join("e.json")),
        (404, folder.join("errors/404.html")),
    ];
    assert_eq!(*pages, expected.into());
    assert!(
        parse_valid(&folder, &site("")).sites[0]
            .error_pages
            .is_empty()
    );
}

#[test]
fn reports_pages_that_could_not_be_sent() {
    const STATUS: &str = "expected a status from 400 to 599, \"4xx\" or \"5xx\"";
    let folder = TestDir::with_sample_site();
    folder.add("full.html", &"x".repeat(1 << 20));
    folder.add("large.html", &"x".repeat((1 << 20) + 1));
    let rows = [
        (
            "404 = \"none.html\"",
            "`error_pages`: none.html does not exist".to_owned(),
        ),
        (
            "404 = \"public\"",
            "`error_pages`: public is not a regular file".to_owned(),
        ),
        (
            "404 = \"large.html\"",
            "`error_pages`: large.html is larger than 1MiB".to_owned(),
        ),
        (
            "404 = \"\"",
            "`404` cannot be \"\": expected a path".to_owned(),
        ),
        (
            "404 = 1",
            "`404` must be a string, not an integer".to_owned(),
        ),
        (
            "200 = \"app.py\"",
            format!("`error_pages` cannot be \"200\": {STATUS}"),
        ),
        (
            "600 = \"app.py\"",
            format!("`error_pages` cannot be \"600\": {STATUS}"),
        ),
        (
            "\"+40\" = \"app.py\"",
            format!("`error_pages` cannot be \"+40\": {STATUS}"),
        ),
        (
            "\"0404\" = \"app.py\"",
            format!("`error_pages` cannot be \"0404\": {STATUS}"),
        ),
        (
            "3xx = \"app.py\"",
            format!("`error_pages` cannot be \"3xx\": {STATUS}"),
        ),
    ];
    for (pages, expected) in rows {
        let report = parse_in_dir(&folder, &site(pages)).unwrap_err();
        let lines = folder.error_lines(&report);
        let [line] = lines.as_slice() else {
            panic!("{pages}: {lines:?}");
        };
        assert!(line.ends_with(&expected), "{pages}: {line}");
    }
    parse_valid(&folder, &site("404 = \"full.html\""));
}

#[test]
fn reads_which_errors_are_intercepted() {
    let folder = TestDir::with_sample_site();
    folder.add("e.html", "");
    let read = |keys: &str, route: &str| {
        let text = format!(
            "[apps.a]\n[[sites]]\nerror_pages = {{ 5xx = \"e.html\" }}\n{keys}\n\
             [[sites.routes]]\napp = \"a\"\n{route}\n"
        );
        let config = parse_valid(&folder, &text);
        let site = &config.sites[0];
        (site.intercept_errors.clone(), site.routes[0].clone())
    };
    let (of_site, route) = read("", "");
    assert!(of_site.is_empty() && route.intercept_errors.is_none());
    assert_eq!(read("intercept_errors = true", "").0, [4, 5].into());
    let list = "intercept_errors = [\"404\", \"5xx\"]";
    assert_eq!(read(list, "").0, [5, 404].into());
    let (_, route) = read(
        list,
        "intercept_errors = false\nerror_pages = { 404 = \"e.html\" }",
    );
    assert_eq!(route.intercept_errors, Some([].into()));
    assert_eq!(route.error_pages, [(404, folder.join("e.html"))].into());
}

#[test]
fn reports_interception_without_a_page() {
    const NONE: &str = "`intercept_errors` needs `error_pages`, which neither the site nor its \
                        route has";
    let app = "[[sites.routes]]\napp = \"a\"\n";
    let rows = [
        (
            format!("intercept_errors = true\n{app}"),
            format!("3:20: {NONE}"),
        ),
        (
            format!("{app}intercept_errors = true\n"),
            format!("3:1: route /*: {NONE}"),
        ),
        (
            format!("intercept_errors = [\"200\"]\n{app}"),
            "3:21: `intercept_errors` cannot be \"200\": expected a status from \"400\" to \
             \"599\", \"4xx\" or \"5xx\""
                .to_owned(),
        ),
        (
            "[[sites.routes]]\nrespond = {}\nintercept_errors = false\n".to_owned(),
            format!("5:20: `intercept_errors` is only for {ONLY_ROUTE_WITH_BACKEND}"),
        ),
    ];
    for (keys, expected) in rows {
        let text = format!("[apps.a]\n[[sites]]\n{keys}");
        let expected = format!("penstock.toml:{expected}");
        check_error_table(&[(&keys, &text, &[&expected])]);
    }
}
