//! Mail, to a server of one's own and, with TLS and a login, to that of `scripts/db`.

use std::path::PathBuf;
use std::time::Duration;

use redrive::notify::{Channel, Encryption, Mail, Message, NotifyConfig};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::harness::NOW;
use crate::sink::{Sink, header, mails_in, text};

fn message(subject: &str, text: &str) -> Message {
    Message { subject: subject.into(), text: text.into(), ..Message::default() }
}

async fn send(mail: Mail, message: &Message) -> Result<(), String> {
    Channel::Mail(mail).send(message, NOW).await.map_err(|e| e.to_string())
}

#[tokio::test]
async fn a_mail_arrives_as_plain_text() {
    let sink = Sink::start().await;
    let said = "two lines\nof 漢字\n.\n..dots\n";
    send(sink.mail(), &message("[redrive] 1 task keeps failing: pay (1)", said)).await.unwrap();
    let mails = sink.mails();
    let [mail] = &*mails else { panic!("{mails:?}") };
    assert_eq!(header(mail, "X-Rcpt-To").as_deref(), Some("ops@example.org"));
    assert_eq!(header(mail, "From").as_deref(), Some("Redrive <redrive@example.org>"));
    assert_eq!(header(mail, "Subject").as_deref(), Some("[redrive] 1 task keeps failing: pay (1)"));
    assert_eq!(header(mail, "Auto-Submitted").as_deref(), Some("auto-generated"));
    assert!(header(mail, "Content-Type").unwrap().starts_with("text/plain"), "{mail}");
    assert_eq!(text(mail).replace("\r\n", "\n").trim_end(), said.trim_end());
}

#[tokio::test]
async fn several_people_get_one_mail() {
    let sink = Sink::start().await;
    let mail = Mail { to: vec!["a@example.org".into(), "B <b@example.org>".into()], ..sink.mail() };
    send(mail, &message("s", "t")).await.unwrap();
    assert_eq!(sink.mails().len(), 1);
    assert_eq!(header(&sink.mails()[0], "X-Rcpt-To").as_deref(), Some("a@example.org, b@example.org"));
}

#[tokio::test]
async fn a_subject_cannot_add_headers() {
    let sink = Sink::start().await;
    send(sink.mail(), &message("x\r\nBcc: c@example.org\r\n\r\nbody", "t")).await.unwrap();
    let mails = sink.mails();
    assert_eq!((header(&mails[0], "Bcc"), header(&mails[0], "X-Rcpt-To").as_deref()), (None, Some("ops@example.org")));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error() {
    let sink = Sink::down();
    let said = send(sink.mail(), &message("s", "t")).await.unwrap_err();
    assert!(said.to_lowercase().contains("refused"), "{said}");
}

#[tokio::test]
async fn a_test_message_says_of_each_channel_whether_it_works() {
    let sink = Sink::start().await;
    let mut config: NotifyConfig = sink.config();
    config.channels.insert("broken".into(), Channel::Mail(Sink::down().mail()));
    let results: Vec<_> = config.send_test().await.into_iter().map(|(name, sent)| (name, sent.is_ok())).collect();
    assert_eq!(results, [("broken".to_owned(), false), ("ops".to_owned(), true)]);
    assert_eq!(header(&sink.mails()[0], "Subject").as_deref(), Some("[redrive] test"));
}

/// The sink of `scripts/db`: it wants TLS and a login.
fn shared(encryption: Encryption, to: &str) -> Mail {
    let variable = if encryption == Encryption::Tls { "REDRIVE_TEST_SMTP_TLS" } else { "REDRIVE_TEST_SMTP_STARTTLS" };
    let (address, ca) = (set(variable), set("REDRIVE_TEST_SMTP_CA"));
    let (host, port) = address.split_once(':').unwrap();
    Mail {
        host: host.into(),
        port: Some(port.parse().unwrap()),
        encryption,
        user: Some("redrive".into()),
        password: Some("sink".into()),
        from: "redrive@example.org".into(),
        to: vec![to.into()],
        ca_file: Some(ca.into()),
        ..Mail::default()
    }
}

fn set(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test, or `eval \"$(scripts/db env)\"` first"))
}

fn received(to: &str) -> usize {
    let mails = mails_in(&PathBuf::from(set("REDRIVE_TEST_MAILS")));
    mails.iter().filter(|mail| header(mail, "X-Rcpt-To").as_deref() == Some(to)).count()
}

#[tokio::test]
async fn with_starttls_and_a_login() {
    let to = format!("starttls-{}@example.org", std::process::id());
    send(shared(Encryption::Starttls, &to), &message("s", "t")).await.unwrap();
    assert_eq!(received(&to), 1);
}

#[tokio::test]
async fn with_tls_from_the_start() {
    let to = format!("tls-{}@example.org", std::process::id());
    send(shared(Encryption::Tls, &to), &message("s", "t")).await.unwrap();
    assert_eq!(received(&to), 1);
}

#[tokio::test]
async fn a_wrong_password_is_an_error_that_does_not_show_it() {
    let mail = Mail { password: Some("S3CRET".into()), ..shared(Encryption::Starttls, "wrong@example.org") };
    let said = send(mail, &message("s", "t")).await.unwrap_err();
    assert!(said.contains("535") && !said.contains("S3CRET"), "{said}");
    assert_eq!(received("wrong@example.org"), 0);
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_gets_nothing() {
    for encryption in [Encryption::Starttls, Encryption::Tls] {
        let mail = Mail { ca_file: None, ..shared(encryption, "untrusted@example.org") };
        let said = send(mail, &message("s", "t")).await.unwrap_err();
        assert!(said.contains("certificate"), "{said}");
    }
    assert_eq!(received("untrusted@example.org"), 0);
}

/// Starttls is not "TLS if it can be had".
#[tokio::test]
async fn without_starttls_nothing_is_sent() {
    let sink = Sink::start().await;
    let mail = Mail { encryption: Encryption::Starttls, ..sink.mail() };
    let said = send(mail, &message("s", "t")).await.unwrap_err();
    assert!(sink.mails().is_empty(), "{said}");
}

/// A server that says these lines, one after each that it hears, and then ends the connection or says nothing more.
async fn breaks_off(lines: &'static [&'static str], ends: bool) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reading, mut writing) = stream.into_split();
        let mut heard = BufReader::new(reading).lines();
        for line in lines {
            writing.write_all(line.as_bytes()).await.unwrap();
            _ = heard.next_line().await;
        }
        if !ends {
            std::future::pending::<()>().await;
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_breaks_off_anywhere_is_an_error_in_time() {
    const SAID: [&str; 5] = ["220 here\r\n", "250 hello\r\n", "250 from whom\r\n", "250 to whom\r\n", "354 go on\r\n"];
    let sink = Sink::down();
    for n in 0..=SAID.len() {
        for ends in [true, false] {
            let port = breaks_off(&SAID[..n], ends).await;
            let mail = Mail { port: Some(port), timeout: Duration::from_millis(300), ..sink.mail() };
            let said = send(mail, &message("s", "t")).await.unwrap_err();
            assert!(!said.is_empty(), "after {n} lines: {said}");
        }
    }
}
