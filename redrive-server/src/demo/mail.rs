//! A mail server that keeps what it is sent: as much of SMTP (RFC 5321) as a sender needs, on loopback, for one machine.
//!
//! *State.* Of each connection, the lines that have come since the last mail: who sends, who gets it, its text.
//!
//! *Invariants.* A mail that was answered with 250 after its text has been handed on. Commands that are out of order are
//! refused, and a line or a mail that is too long ends the connection.
//!
//! *Failure.* A connection that breaks off takes its unfinished mail along; the sender sends it again.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A mail as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) from: String,
    pub(super) to: Vec<String>,
    /// Headers and text.
    pub(super) data: String,
}

/// RFC 5321 asks for 1,000 bytes a line at least.
const LONGEST_LINE: u64 = 4_096;
const LONGEST_MAIL: usize = 1024 * 1024;

/// Takes mails from now on, for as long as somebody wants them; its port.
pub(super) async fn serve(mails: mpsc::UnboundedSender<Received>) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for mail")?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, mails.clone()));
        }
    });
    Ok(port)
}

async fn talk(mut stream: TcpStream, mails: mpsc::UnboundedSender<Received>) {
    let (read, write) = stream.split();
    let talk = Talk { read: BufReader::new(read), write, mail: Received::default() }.run(&mails).await;
    if let Err(error) = talk {
        tracing::debug!(%error, "a connection to the mail server broke off");
    }
}

struct Talk<R, W> {
    read: BufReader<R>,
    write: W,
    mail: Received,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Talk<R, W> {
    async fn run(mut self, mails: &mpsc::UnboundedSender<Received>) -> Result<()> {
        self.say("220 redrive.demo ready").await?;
        while let Some(line) = self.line().await? {
            let (verb, rest) = line.split_at_checked(4).unwrap_or((&line, ""));
            let answer = match verb.to_ascii_uppercase().as_str() {
                "EHLO" | "HELO" | "RSET" => {
                    self.mail = Received::default();
                    "250 redrive.demo"
                }
                "NOOP" => "250 yes",
                "MAIL" => self.from(rest),
                "RCPT" => self.to(rest),
                "DATA" if self.mail.to.is_empty() => "503 to whom?",
                "DATA" => {
                    self.say("354 go on, and end with a dot").await?;
                    self.mail.data = self.data().await?;
                    _ = mails.send(std::mem::take(&mut self.mail));
                    "250 taken"
                }
                "QUIT" => return self.say("221 goodbye").await,
                _ => "502 not here",
            };
            self.say(answer).await?;
        }
        Ok(())
    }

    /// `MAIL FROM:<a@b>`
    fn from(&mut self, rest: &str) -> &'static str {
        match address(rest, " FROM:") {
            Some(from) => {
                self.mail = Received { from, ..Received::default() };
                "250 fine"
            }
            None => "501 from whom?",
        }
    }

    /// `RCPT TO:<a@b>`
    fn to(&mut self, rest: &str) -> &'static str {
        match address(rest, " TO:") {
            _ if self.mail.from.is_empty() => "503 from whom?",
            Some(to) => {
                self.mail.to.push(to);
                "250 fine"
            }
            None => "501 to whom?",
        }
    }

    /// Until a line that is a dot alone; a line that begins with one has got another (RFC 5321, 4.5.2).
    async fn data(&mut self) -> Result<String> {
        let mut data = String::new();
        loop {
            let Some(line) = self.line().await? else { bail!("it broke off within a mail") };
            if line == "." {
                return Ok(data);
            }
            data.push_str(line.strip_prefix('.').unwrap_or(&line));
            data.push_str("\r\n");
            if data.len() > LONGEST_MAIL {
                bail!("the mail is too long");
            }
        }
    }

    async fn line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        (&mut self.read).take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
        match line.strip_suffix(b"\n") {
            Some(whole) => Ok(Some(String::from_utf8_lossy(whole.strip_suffix(b"\r").unwrap_or(whole)).into_owned())),
            None if line.is_empty() => Ok(None),
            None => bail!("a line without end"),
        }
    }

    async fn say(&mut self, answer: &str) -> Result<()> {
        Ok(self.write.write_all(format!("{answer}\r\n").as_bytes()).await?)
    }
}

/// What stands between `<` and `>` after this word; what follows are options.
fn address(rest: &str, word: &str) -> Option<String> {
    let (before, after) = rest.split_at_checked(word.len())?;
    let (address, _) = after.trim_start().strip_prefix('<')?.split_once('>')?;
    (before.eq_ignore_ascii_case(word) && !address.is_empty()).then(|| address.to_owned())
}

impl Received {
    /// A long one is on several lines, of which all but the first begin with a space.
    pub(super) fn subject(&self) -> String {
        let mut lines = self.data.lines().skip_while(|line| !line.starts_with("Subject: "));
        let first = lines.next().and_then(|line| line.strip_prefix("Subject: ")).unwrap_or_default();
        let more = lines.take_while(|line| line.starts_with([' ', '\t'])).map(str::trim_start);
        [first].into_iter().chain(more).map(str::trim_end).collect::<Vec<_>>().join(" ")
    }

    /// Which reminder of this letter it is, if it is one.
    pub(super) fn reminder_of(&self, id: &str) -> Option<u32> {
        let whole = self.data.replace("=\r\n", ""); // lines that were broken to be sent
        let line = whole.lines().find(|line| line.trim_start().starts_with(id))?;
        let (_, n) = line.split_once("reminder ")?;
        n.split(',').next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server answers to these bytes, and the mails that it took.
    async fn said(sent: &str) -> (String, Vec<Received>) {
        let (sender, mut mails) = mpsc::unbounded_channel();
        let mut answers = Vec::new();
        let talk = Talk { read: BufReader::new(sent.as_bytes()), write: &mut answers, mail: Received::default() };
        _ = talk.run(&sender).await;
        drop(sender);
        let mut all = Vec::new();
        while let Some(mail) = mails.recv().await {
            all.push(mail);
        }
        (String::from_utf8(answers).unwrap(), all)
    }

    #[tokio::test]
    async fn a_mail_is_taken_as_it_was_sent() {
        let sent = "EHLO me\r\nMAIL FROM:<a@b.c> BODY=8BITMIME\r\nrcpt to:<d@e.f>\r\nRCPT TO:<g@h.i>\r\nDATA\r\n\
                    Subject: hello\r\n\r\n..dots\r\n  7 order/7, reminder 2, dead as\r\n.\r\nQUIT\r\nNOOP\r\n";
        let (answers, mails) = said(sent).await;
        let codes: Vec<&str> = answers.lines().map(|line| &line[..3]).collect();
        assert_eq!(codes, ["220", "250", "250", "250", "250", "354", "250", "221"]);
        let [mail] = &*mails else { panic!("{mails:?}") };
        assert_eq!((mail.from.as_str(), mail.to.join(" ")), ("a@b.c", "d@e.f g@h.i".into()));
        assert!(mail.data.contains("\r\n.dots\r\n"), "{}", mail.data);
        assert_eq!((&*mail.subject(), mail.reminder_of("7"), mail.reminder_of("8")), ("hello", Some(2), None));
    }

    #[tokio::test]
    async fn what_is_out_of_order_or_too_long_is_refused() {
        let codes = async |sent: &str| said(sent).await.0.lines().map(|l| l[..3].to_owned()).collect::<Vec<_>>();
        assert_eq!(
            codes("DATA\r\nRCPT TO:<a@b>\r\nMAIL FROM:nobody\r\nx\r\nMAIL\r\n").await,
            ["220", "503", "503", "501", "502", "501"]
        );
        let start = "MAIL FROM:<a@b>\r\nRCPT TO:<a@b>\r\nDATA\r\n";
        for broken in ["half".to_owned(), "x".repeat(5_000), "line\r\n".repeat(200_000)] {
            let (answers, mails) = said(&format!("{start}{broken}")).await;
            assert!(mails.is_empty() && answers.lines().count() == 4, "{answers}");
        }
    }
}
