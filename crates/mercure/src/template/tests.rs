//! Which topics templates match; the values are those of RFC 6570's own examples.

use super::*;

fn check(template: &str, topic: &str, expected: bool) {
    let compiled = UriTemplate::compile(template).expect(template);
    assert_eq!(compiled.matches(topic), expected, "{template} {topic}");
}

#[test]
fn expansions_match_and_nothing_else_does() {
    for (template, yes, no) in [
        (
            "https://example.com/books/{id}",
            &[
                "https://example.com/books/1",
                "https://example.com/books/a-b.c_d~e",
                "https://example.com/books/%C3%A9",
                "https://example.com/books/",
                "https://example.com/books/red,green",
            ][..],
            &[
                "https://example.com/books/1/pages",
                "https://example.com/books/%C3%",
                "https://example.com/books/1?x=1",
                "https://example.com/book/1",
                "https://example.com/books/é",
                "",
            ][..],
        ),
        (
            "/books/{id}/pages/{page}.json",
            &["/books/1/pages/2.json", "/books//pages/.json"],
            &[
                "/books/1/pages/2",
                "/books/1/2/pages/3.json",
                "/books/1/pages/2.jsonx",
            ],
        ),
        // Level 2.
        (
            "{+path}/here",
            &["/foo/bar/here", "/here", "http://a/?b#c/here"],
            &["/foo/bar", "/foo bar/here"],
        ),
        (
            "X{#hello}",
            &["X#Hello,World!", "X#", "X"],
            &["XHello", "X#a b"],
        ),
        // Level 3.
        (
            "map?{x,y}",
            &["map?1024,768", "map?", "map?1024"],
            &["map?a=b", "map"],
        ),
        (
            "X{.x,y}",
            &["X.1024.768", "X.1024", "X"],
            &["X1024", "X/1024"],
        ),
        (
            "{/var,x}/here",
            &["/value/1024/here", "/value/here", "/here"],
            &["/a/b/c/here"],
        ),
        (
            "{;x,y,empty}",
            &[";x=1024;y=768;empty", ";x=1", ";y=1", ";empty", ""],
            &[";z=1", ";y=768;x=1024", "x=1024"],
        ),
        (
            "/a{?x,y,empty}",
            &[
                "/a?x=1024&y=768",
                "/a?x=1024&y=768&empty=",
                "/a?y=768",
                "/a",
            ],
            &[
                "/a?z=1",
                "/a?x",
                "/a?y=1&x=1",
                "/a?",
                "/a?x=1&x=2",
                "/a?x=1?y=2",
            ],
        ),
        (
            "?fixed=yes{&x}",
            &["?fixed=yes&x=1024", "?fixed=yes"],
            &["?fixed=yes?x=1024"],
        ),
        // Level 4.
        (
            "/{var:3}",
            &["/val", "/v", "/", "/%C3%A9a%20"],
            &["/valu", "/%C3%A9ab%20"],
        ),
        (
            "{/list*}",
            &["/red/green/blue", "/semi=%3B/dot=.", ""],
            &["red", "/a?b"],
        ),
        ("{/var:1,var}", &["/v/value", "/v"], &["/val/ue/x"]),
        (
            "/a{?list*}",
            &["/a?list=red&list=green", "/a?semi=%3B&dot=."],
            &["/a/b"],
        ),
        ("{;list*}x", &[";list=red;list=greenx"], &[";list=red"]),
        ("{a}{b}{c}", &["", "abc"], &["a/b"]),
        (
            "{a}-{b}-{c}",
            &["1-2-3", "--", "a-b-c-d-e"],
            &["1-2", "1/-2-3"],
        ),
        ("{semi:2}x{a.b,c_d,%41}", &["abx1,2,3", "x"], &["abcy1"]),
    ] {
        for topic in yes {
            check(template, topic, true);
        }
        for topic in no {
            check(template, topic, false);
        }
    }
}

#[test]
fn what_is_no_template_is_a_plain_string() {
    for text in [
        "",
        "*",
        "https://example.com/a",
        "{",
        "}",
        "{}",
        "a{b",
        "a}b",
        "{a}}",
        "{{a}}",
        "{=a}",
        "{!a}",
        "{a b}",
        "{a,}",
        "{,a}",
        "{?}",
        "{a:}",
        "{a:0}",
        "{a:10000}",
        "{a:x}",
        "{a**}",
        "{a..b}",
        "{.a.}",
        "{é}",
        "{%4}",
        "{a:3*}",
    ] {
        assert_eq!(
            UriTemplate::compile(text),
            Err(TemplateError::NotATemplate),
            "{text}"
        );
    }
}

#[test]
fn the_number_of_variables_is_bounded_however_they_stand() {
    let list = |count: usize| format!("{{{}}}", vec!["a"; count].join(","));
    for (template, variables) in [
        (
            "{a}".repeat(MAX_TEMPLATE_VARIABLES),
            Ok(MAX_TEMPLATE_VARIABLES),
        ),
        (
            "{a}".repeat(MAX_TEMPLATE_VARIABLES + 1),
            Err(TemplateError::TooComplex),
        ),
        (list(MAX_TEMPLATE_VARIABLES), Ok(MAX_TEMPLATE_VARIABLES)),
        (
            list(MAX_TEMPLATE_VARIABLES + 1),
            Err(TemplateError::TooComplex),
        ),
        (
            list(MAX_TEMPLATE_VARIABLES) + "{a}",
            Err(TemplateError::TooComplex),
        ),
        // As long as a topic may be.
        (list(4000), Err(TemplateError::TooComplex)),
    ] {
        let found = UriTemplate::compile(&template).map(|template| template.variable_count());
        assert_eq!(found, variables, "{template}");
    }
}

#[test]
fn the_text_in_front_is_known() {
    for (text, prefix) in [("/a/{b}", "/a/"), ("{b}/a", ""), ("x{b}y{c}z", "x")] {
        assert_eq!(
            UriTemplate::compile(text).unwrap().prefix(),
            prefix,
            "{text}"
        );
    }
}

/// One that tried its ways one after the other would not come to an end here.
#[test]
fn a_hostile_template_costs_no_more_than_its_length_times_the_topics() {
    for (expression, variables) in [("{+a}", 1), ("{a,b,c,d}", 4), ("{/a*}", 1)] {
        let template = expression.repeat(MAX_TEMPLATE_VARIABLES / variables) + "!";
        check(&template, &("a,/".repeat(1365) + "é!"), false);
        check(&template, &("a,".repeat(2048) + "é!"), false);
    }
}
