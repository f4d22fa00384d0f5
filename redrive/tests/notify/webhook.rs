//! Webhooks: what is sent, how it is signed, which answers are successes.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redrive::notify::{Channel, Format, Message, Notifier, NotifyConfig, Webhook};
use serde_json::json;

use crate::harness::{Db, Kind, Log, NOW};
use crate::hook::Hook;
use crate::notices::fail_one;

fn message() -> Message {
    let text = "1 task keeps failing.\n\npay: <at user_id=\"all\"> & <!channel>\n".into();
    Message { subject: "[redrive] 1 task keeps failing: pay (1)".into(), text, details: json!({ "tasks": 1 }) }
}

async fn send(webhook: Webhook) -> Result<(), String> {
    Channel::Webhook(webhook).send(&message(), NOW).await.map_err(|e| e.to_string())
}

#[tokio::test]
async fn generic_is_json_for_programs() {
    let hook = Hook::answering("202 Accepted", "").await;
    send(hook.webhook(Format::Generic)).await.unwrap();
    let requests = hook.requests();
    let [request] = &*requests else { panic!("{requests:?}") };
    assert_eq!(request.path, "/send?access_token=S3cretT0KEN");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!((request.json()["details"]["tasks"].as_i64(), request.json()["subject"].is_string()), (Some(1), true));
    assert_eq!(request.header("webhook-signature"), None);
}

#[tokio::test]
async fn generic_is_signed_after_standard_webhooks() {
    let hook = Hook::answering("200 OK", "").await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    send(Webhook { secret: Some(secret.into()), ..hook.webhook(Format::Generic) }).await.unwrap();
    let request = hook.requests().pop().unwrap();
    let (id, time) = (request.header("webhook-id").unwrap(), request.header("webhook-timestamp").unwrap());
    assert_eq!(time, "1800000000");
    // Computed here with another library than the one under test.
    let key = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let sign = hmac_sha256(&key, format!("{id}.{time}.{}", request.body).as_bytes());
    assert_eq!(request.header("webhook-signature"), Some(&*format!("v1,{}", BASE64_STANDARD.encode(sign))));
}

/// HMAC by its definition (RFC 2104), for keys of up to 64 bytes.
fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let pad = |byte: u8| (0..64).map(|i| key.get(i).copied().unwrap_or(0) ^ byte).collect::<Vec<u8>>();
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

#[tokio::test]
async fn slack_gets_text_in_which_nothing_calls_anyone() {
    let hook = Hook::answering("200 OK", "ok").await;
    send(hook.webhook(Format::Slack)).await.unwrap();
    let body = hook.requests()[0].json();
    let text = body["text"].as_str().unwrap();
    assert!(
        text.starts_with("[redrive] 1 task") && text.contains("&lt;!channel&gt;") && text.contains("&amp;"),
        "{text}"
    );
    assert_eq!(body["mrkdwn"], false);
}

#[tokio::test]
async fn dingtalk_is_signed_in_the_address() {
    let hook = Hook::answering("200 OK", r#"{"errcode":0,"errmsg":"ok"}"#).await;
    send(Webhook { secret: Some("SEC0123".into()), ..hook.webhook(Format::Dingtalk) }).await.unwrap();
    let request = hook.requests().pop().unwrap();
    // The signature was computed with Python's hmac.
    let sign =
        "kFFjZ5mX6MbeOgwIzqXaQnzYpxA675G3ok9K7j03ptU=".replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    assert_eq!(request.path, format!("/send?access_token=S3cretT0KEN&timestamp=1800000000000&sign={sign}"));
    assert!(request.json()["text"]["content"].as_str().unwrap().starts_with("[redrive] 1 task"));
    assert_eq!(request.json()["msgtype"], "text");
}

#[tokio::test]
async fn feishu_is_signed_in_the_body() {
    let hook = Hook::answering("200 OK", r#"{"code":0,"msg":"success","data":{}}"#).await;
    send(Webhook { secret: Some("demo".into()), ..hook.webhook(Format::Feishu) }).await.unwrap();
    let body = hook.requests()[0].json();
    // The signature was computed with Python's hmac.
    assert_eq!(
        (&body["timestamp"], &body["sign"]),
        (&json!("1800000000"), &json!("pF+te9OMpCvukBCWTEVHBcbeXFREZySl8/biApB5r08="))
    );
    let post = &body["content"]["post"]["en_us"];
    assert_eq!((&body["msg_type"], &post["title"]), (&json!("post"), &json!(message().subject)));
    assert_eq!(post["content"], json!([[{ "tag": "text", "text": message().text }]]));
}

#[tokio::test]
async fn wecom_gets_no_more_than_it_takes() {
    let hook = Hook::answering("200 OK", r#"{"errcode":0,"errmsg":"ok"}"#).await;
    let long = Message { text: "漢".repeat(5000), ..message() };
    hook.channel(Format::Wecom).send(&long, NOW).await.unwrap();
    let body = hook.requests()[0].json();
    let text = body["text"]["content"].as_str().unwrap();
    assert!(text.len() <= 2048 && text.len() > 2040 && text.ends_with('…'), "{}", text.len());
}

#[tokio::test]
async fn only_what_the_bots_call_a_success_is_one() {
    let hook = Hook::answering("200 OK", "").await;
    for (format, answer, ok) in [
        (Format::Dingtalk, r#"{"errcode":310000,"errmsg":"sign not match"}"#, false),
        (Format::Wecom, r#"{"errcode":93000,"errmsg":"invalid webhook url"}"#, false),
        (Format::Feishu, r#"{"code":19021,"msg":"sign match fail"}"#, false),
        (Format::Feishu, r#"{"StatusCode":0,"StatusMessage":"success"}"#, true),
        (Format::Feishu, "<html>please log in</html>", false),
        (Format::Dingtalk, "{}", false),
        (Format::Generic, "whatever", true),
    ] {
        hook.answer("200 OK", answer);
        let result = send(hook.webhook(format)).await;
        assert_eq!(result.is_ok(), ok, "{format:?} {answer} {result:?}");
        if !ok {
            assert!(result.unwrap_err().contains(answer), "it says what the bot said");
        }
    }
}

#[tokio::test]
async fn http_errors_and_redirects_are_failures() {
    let hook = Hook::answering("", "").await;
    let padding = "x".repeat(190); // what is kept ends within the token
    let bodies =
        ["token S3cretT0KEN? no: http", "Cannot POST /send?access_token=S3cretT0KEN", &(padding + "S3cretT0KEN")];
    for (status, body) in ["500 Internal Server Error", "403 Forbidden", "302 Found"].into_iter().zip(bodies) {
        hook.answer(status, body);
        let said = send(hook.webhook(Format::Slack)).await.unwrap_err();
        assert!(said.contains(&status[..3]) && said.contains("***") && !said.contains("S3cret"), "{said}");
    }
    assert_eq!(hook.requests().len(), 3, "a redirect is not followed");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let hook = Hook::answering("", "").await;
    let webhook = Webhook { timeout: Duration::from_millis(50), ..hook.webhook(Format::Generic) };
    let said = send(webhook).await.unwrap_err();
    assert!(said.contains("timed out") && !said.contains("T0KEN"), "{said}");
}

/// A server may say back what it was sent.
#[tokio::test]
async fn an_answer_with_our_secrets_in_it_is_not_kept() {
    let hook = Hook::answering("400 Bad Request", "").await;
    let webhook = Webhook { secret: Some("S3CRET".into()), ..hook.webhook(Format::Dingtalk) };
    hook.answer("400 Bad Request", &format!("{} S3CRET", webhook.url.reveal()));
    let said = send(webhook).await.unwrap_err();
    assert!(said.contains("400") && !said.contains("T0KEN") && !said.contains("S3CRET"), "{said}");
}

/// What is logged of a failure names the host, and no more of the address.
#[tokio::test]
async fn logs_show_no_secrets() {
    let log = Log::start("trace"); // everything, by whichever library
    let db = Db::fresh(Kind::Sqlite).await;
    fail_one(&db, 1).await;
    let hook = Hook::answering("200 OK", r#"{"errcode":300001,"errmsg":"token is not exist"}"#).await;
    let webhook = Webhook { secret: Some("S3CRET".into()), ..hook.webhook(Format::Dingtalk) };
    let channels = [("chat".to_owned(), Channel::Webhook(webhook))].into();
    let config = NotifyConfig { channels, ..NotifyConfig::default() };
    let round = Notifier::new(db.store.clone(), config).unwrap().run_once("me", NOW).await.unwrap();
    assert_eq!((round.sent, round.failed), (0, 1));
    let written = log.end();
    assert!(written.contains("people could not be told") && written.contains("127.0.0.1"), "{written}");
    assert!(!written.contains("T0KEN") && !written.contains("S3CRET"), "{written}");
    let state = db.store.channel_states().await.unwrap().pop().unwrap();
    let error = state.last_error.unwrap();
    assert!(error.contains("300001") && !error.contains("T0KEN"), "{error}");
}
