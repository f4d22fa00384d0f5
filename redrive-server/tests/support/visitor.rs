//! Somebody who uses the console without scripts.

use redrive::store::Role;

use super::{Answer, Server};

/// Their cookies, what else their browser sends, and the secret of their forms.
#[derive(Clone, Default)]
pub struct Visitor {
    pub cookies: String,
    /// Each with the end of its line.
    pub headers: String,
    /// Nothing: forms are sent as they are given.
    pub csrf: String,
}

impl Visitor {
    pub fn in_chinese(&self) -> Self {
        Self { cookies: format!("{}; redrive_lang=zh", self.cookies), ..self.clone() }
    }
}

impl Answer {
    /// What a form of this page sends along.
    pub fn csrf(&self) -> &str {
        self.body.split("name=\"csrf\" value=\"").nth(1).expect("a form").split('"').next().unwrap()
    }

    /// The first cookie that it sets, as it is sent back.
    pub fn cookie(&self) -> &str {
        self.header("set-cookie").split(';').next().unwrap()
    }
}

impl Server {
    pub fn get(&self, who: &Visitor, path: &str) -> Answer {
        let Visitor { cookies, headers, .. } = who;
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\naccept: text/html\r\ncookie: {cookies}\r\n{headers}\r\n",
            self.address
        ))
    }

    pub fn post(&self, who: &Visitor, path: &str, form: &[(&str, &str)]) -> Answer {
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        body.extend_pairs((!who.csrf.is_empty()).then_some(("csrf", &*who.csrf))).extend_pairs(form);
        let (body, Visitor { cookies, headers, .. }) = (body.finish(), who);
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncookie: {cookies}\r\n{headers}\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ))
    }

    /// Does something that goes well, and gives the page that says so.
    pub fn does(&self, who: &Visitor, path: &str, form: &[(&str, &str)]) -> Answer {
        let done = self.post(who, path, form);
        assert_eq!(done.status, 303, "{path}: {}", done.body);
        let told = Visitor { cookies: format!("{}; {}", who.cookies, done.cookie()), ..who.clone() };
        let page = self.get(&told, done.header("location").split('#').next().unwrap());
        assert!(page.status == 200 && page.has("role=\"status\""), "{path}: {}", page.body);
        page
    }

    pub fn log_in(&self, token: &str) -> Visitor {
        let answer = self.post(&Visitor::default(), "/login", &[("token", token), ("next", "/")]);
        assert_eq!((answer.status, answer.header("location")), (303, "/"), "{}", answer.body);
        let said = answer.header("set-cookie");
        assert!(said.contains("HttpOnly") && said.contains("SameSite=Lax") && !said.contains("Secure"), "{said}");
        Visitor { cookies: answer.cookie().to_owned(), ..Visitor::default() }
    }

    pub fn admin(&self) -> Visitor {
        self.log_in(&self.token)
    }

    /// An admin whose forms carry their secret.
    pub fn admin_with_forms(&self) -> Visitor {
        let who = self.admin();
        let csrf = self.get(&who, "/channels").csrf().to_owned();
        Visitor { csrf, ..who }
    }

    pub async fn somebody(&self, role: Role) -> Visitor {
        self.log_in(&self.new_token("eve", role).await.0)
    }
}
