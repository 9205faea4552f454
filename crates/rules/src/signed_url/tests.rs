//! Links as other programs sign them.

use penstock_config::Secret;

use super::*;
use crate::testing::request;

/// The key of the links below, which Python's `hmac` has signed.
const KEY: &str = "a secret of thirty-two bytes.....";
const IN_TIME: u64 = 1_999_999_999;

fn rule(secrets: &[&str]) -> SignedUrl {
    SignedUrl::new(secrets.iter().copied().map(Secret::from).collect())
}

fn judge(rule: &SignedUrl, target: &str, seconds: u64) -> Result<(), LinkProblem> {
    let rule = SignedUrlRule::new(rule);
    rule.judge(&request(target, ""), Duration::from_secs(seconds))
}

#[test]
fn a_signature_covers_the_whole_target() {
    let link = "/s/a.zip?expires=2000000000&signature=nxFkS2HVNjCOmM131Ec1TbVkfac3Tdx4CE62TMq4cDQ";
    let (path, signature) = link.split_once("?expires=2000000000&").unwrap();
    let hex = "9f11644b61d536308e98cd77d447354db5647da7374ddc78084eb64ccab87034";
    let with_id = "R7tT7z9MiZjIErz_RVvrcdPnDSPGmd-Hq7WcEBEoRMw";
    for (target, expected) in [
        (link.to_owned(), Ok(())),
        (format!("{link}="), Ok(())),
        (format!("{path}?{signature}&expires=2000000000"), Ok(())),
        (format!("{path}?expires=2000000000&signature={hex}"), Ok(())),
        (
            format!("{path}?id=1&signature={with_id}&expires=2000000000"),
            Ok(()),
        ),
        (
            format!("{path}?id=2&signature={with_id}&expires=2000000000"),
            Err(LinkProblem::WrongSignature),
        ),
        (
            link.replace("a.zip", "b.zip"),
            Err(LinkProblem::WrongSignature),
        ),
        (
            link.replace("20000", "30000"),
            Err(LinkProblem::WrongSignature),
        ),
        (format!("{link}&id=1"), Err(LinkProblem::WrongSignature)),
        (link.replace("nxF", "nxG"), Err(LinkProblem::WrongSignature)),
        (
            format!("{path}?expires=2000000000"),
            Err(LinkProblem::NotSigned),
        ),
        (
            format!("{path}?expires=2000000000&signature="),
            Err(LinkProblem::WrongSignature),
        ),
        (format!("{link}&{signature}"), Err(LinkProblem::Ambiguous)),
        (format!("{link}&expires=9"), Err(LinkProblem::Ambiguous)),
    ] {
        assert_eq!(judge(&rule(&[KEY]), &target, IN_TIME), expected, "{target}");
    }
    assert_eq!(
        judge(&rule(&[KEY]), link, 2_000_000_000),
        Err(LinkProblem::Expired)
    );
    let forged = link.replace("nxF", "nxG");
    let late = judge(&rule(&[KEY]), &forged, 2_000_000_000);
    assert_eq!(late, Err(LinkProblem::WrongSignature));
    // A new secret stands before the old one until the old links are over.
    assert_eq!(judge(&rule(&["new secret", KEY]), link, IN_TIME), Ok(()));
    let other = judge(&rule(&["another secret"]), link, IN_TIME);
    assert_eq!(other, Err(LinkProblem::WrongSignature));
}

#[test]
fn a_link_may_be_for_one_address_or_method() {
    let mut rule = rule(&[KEY]);
    let link = "/s/a.zip?expires=2000000000&signature=";
    rule.client = true;
    let own = format!("{link}0H3RWmFOZSCPnQEa8VL4jhd7WILUXyhfykEuJgAs0nU");
    let any = format!("{link}nxFkS2HVNjCOmM131Ec1TbVkfac3Tdx4CE62TMq4cDQ");
    assert_eq!(judge(&rule, &own, IN_TIME), Ok(()));
    assert_eq!(
        judge(&rule, &any, IN_TIME),
        Err(LinkProblem::WrongSignature)
    );
    rule.methods = vec!["PUT".to_owned()];
    assert_eq!(judge(&rule, &own, IN_TIME), Err(LinkProblem::Method));
}

#[test]
fn links_of_nginx_are_good() {
    let rule = |text: &str| SignedUrl {
        md5: SignedText::parse(text),
        signature_parameter: "md5".to_owned(),
        ..rule(&["secret"])
    };
    // The example of its documentation, for 127.0.0.1 there.
    let literal = rule("{expires}{path}127.0.0.1 {secret}");
    let link = "/s/link?md5=_e4Nc3iduzkWRm01TBBNYw&expires=2147483647";
    assert_eq!(judge(&literal, link, IN_TIME), Ok(()));
    assert_eq!(judge(&literal, &format!("{link}&x=1"), IN_TIME), Ok(()));
    assert_eq!(
        judge(&literal, link, 2_147_483_647),
        Err(LinkProblem::Expired)
    );
    let encoded = link.replace("link", "%6cink");
    assert_eq!(judge(&literal, &encoded, IN_TIME), Ok(()));
    for wrong in [
        link.replace("link", "lint"),
        link.replace("2147483647", "2147483648"),
        "/s/link?md5=&expires=2147483647".to_owned(),
    ] {
        let found = judge(&literal, &wrong, IN_TIME);
        assert_eq!(found, Err(LinkProblem::WrongSignature), "{wrong}");
    }
    let other_client = judge(&rule("{expires}{path}{client} {secret}"), link, IN_TIME);
    assert_eq!(other_client, Err(LinkProblem::WrongSignature));
    // Without an end in the text there is none.
    let digest = URL_SAFE_NO_PAD.encode(Md5::digest("/s/link secret"));
    let endless = rule("{path} {secret}");
    assert_eq!(
        judge(&endless, &format!("/s/link?md5={digest}"), IN_TIME),
        Ok(())
    );
}
