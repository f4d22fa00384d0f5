//! What settings are taken, and that secrets stay secret.

use redrive::notify::{Channel, Format, Mail, NotifyConfig, Webhook};
use redrive::{Engine, Store};

fn read(json: &str) -> NotifyConfig {
    serde_json::from_str(json).unwrap()
}

#[test]
fn settings_are_read_with_defaults() {
    let config = read(
        r#"{"channels": {
            "ops": {"type": "mail", "encryption": "tls", "from": "a@example.org", "to": ["b@example.org"], "timeout": "5s"},
            "chat": {"type": "webhook", "format": "feishu", "url": "https://open.feishu.cn/hook/T0KEN", "secret": "S3CRET"}
        }}"#,
    );
    config.validate().unwrap();
    let Channel::Mail(mail) = &config.channels["ops"] else { panic!("{config:?}") };
    assert_eq!((mail.port(), mail.timeout.as_secs(), &*mail.host), (465, 5, "localhost"));
    let Channel::Webhook(chat) = &config.channels["chat"] else { panic!("{config:?}") };
    assert_eq!((chat.format, chat.url.reveal()), (Format::Feishu, "https://open.feishu.cn/hook/T0KEN"));
}

#[test]
fn unknown_fields_and_channels_are_refused() {
    for wrong in [
        r#"{"digest": "5m"}"#,
        r#"{"channels": {"ops": {"type": "pigeon"}}}"#,
        r#"{"channels": {"ops": {"type": "mail", "servr": "x"}}}"#,
        r#"{"channels": {"ops": {"type": "webhook", "token": "x"}}}"#,
    ] {
        assert!(serde_json::from_str::<NotifyConfig>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn all_problems_are_listed_and_show_no_secret() {
    let config = read(
        r#"{"digest_interval": "0s", "channels": {
            "Ops": {"type": "mail", "host": "", "encryption": "none", "password": "S3CRET", "from": "nobody", "timeout": "1h"},
            "cc": {"type": "mail", "user": "u", "from": "a@example.org", "to": ["b@example.org\r\nBcc: c@example.org"]},
            "chat": {"type": "webhook", "format": "wecom", "url": "ftp://host/T0KEN", "secret": "S3CRET"},
            "any": {"type": "webhook", "url": "https://host/T0KEN", "secret": "S3CRET"}
        }}"#,
    );
    let said = config.validate().unwrap_err().to_string();
    for field in [
        "digest_interval:",
        "channels.Ops.name:",
        "channels.Ops.host:",
        "channels.Ops.encryption:",
        "channels.Ops.password:",
        "channels.Ops.from:",
        "channels.Ops.to:",
        "channels.Ops.timeout:",
        "channels.cc.password:",
        "channels.cc.to.0:",
        "channels.chat.url:",
        "channels.chat.secret:",
        "channels.any.secret:",
    ] {
        assert!(said.contains(field), "{field} in {said}");
    }
    assert!(!said.contains("S3CRET") && !said.contains("T0KEN"), "{said}");
    assert!(NotifyConfig::default().validate().unwrap_err().to_string().contains("channels:"));
}

#[test]
fn secrets_are_neither_printed_nor_written() {
    let mail = Mail { password: Some("S3CRET".into()), ..Mail::default() };
    let hook = Webhook { url: "https://host/T0KEN".into(), secret: Some("S3CRET".into()), ..Webhook::default() };
    let channels = [("a".to_owned(), Channel::Mail(mail)), ("b".to_owned(), Channel::Webhook(hook))].into();
    let config = NotifyConfig { channels, ..NotifyConfig::default() };
    for shown in [format!("{config:?}"), format!("{config:#?}"), serde_json::to_string(&config).unwrap()] {
        assert!(shown.contains("***") && !shown.contains("S3CRET") && !shown.contains("T0KEN"), "{shown}");
    }
}

#[tokio::test]
async fn an_engine_refuses_what_cannot_work() {
    let store = Store::open("sqlite::memory:").await.unwrap();
    let said = Engine::builder(store).notify(NotifyConfig::default()).start().await.unwrap_err().to_string();
    assert!(said.contains("notify.channels"), "{said}");
}
