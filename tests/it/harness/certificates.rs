//! Certificates of the tests' own.

use openssl::{
    asn1::Asn1Time,
    bn::BigNum,
    ec::{EcGroup, EcKey},
    hash::MessageDigest,
    nid::Nid,
    pkey::{PKey, Private},
    x509::{
        X509, X509Builder, X509NameBuilder,
        extension::{BasicConstraints, SubjectAlternativeName},
    },
};

/// A certificate with its key.
pub struct Issued {
    pub certificate: X509,
    pub key: PKey<Private>,
}

impl Issued {
    /// As servers and clients read it from a file.
    pub fn pem(&self) -> Vec<u8> {
        self.certificate.to_pem().expect("PEM")
    }

    pub fn key_pem(&self) -> Vec<u8> {
        self.key.private_key_to_pem_pkcs8().expect("PEM")
    }
}

/// A certificate for this name, signed by the issuer, or by itself.
pub fn issue(name: &str, issuer: Option<&Issued>) -> Issued {
    issue_from(name, issuer, 0)
}

/// One that was good until a day ago.
pub fn expired(name: &str, issuer: &Issued) -> Issued {
    issue_from(name, Some(issuer), -3)
}

/// Good for two days from a day on, counted from now.
fn issue_from(name: &str, issuer: Option<&Issued>, day: i64) -> Issued {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let key = PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key");
    let mut subject = X509NameBuilder::new().expect("a name");
    subject.append_entry_by_text("CN", name).expect("a name");
    let subject = subject.build();
    let mut builder = X509Builder::new().expect("a certificate");
    builder.set_version(2).expect("version 3");
    let serial = BigNum::from_u32(u32::from(issuer.is_some()) + 1).expect("a number");
    builder
        .set_serial_number(&serial.to_asn1_integer().expect("a number"))
        .expect("a serial number");
    builder.set_subject_name(&subject).expect("a subject");
    let issuer_name = issuer.map_or(&*subject, |issuer| issuer.certificate.subject_name());
    builder.set_issuer_name(issuer_name).expect("an issuer");
    let now = jiff::Timestamp::now().as_second();
    let time = |day: i64| Asn1Time::from_unix(now + day * 86_400).expect("a time");
    builder.set_not_before(&time(day)).expect("a time");
    builder.set_not_after(&time(day + 2)).expect("a time");
    builder.set_pubkey(&key).expect("a public key");
    if issuer.is_none() {
        let extension = BasicConstraints::new()
            .critical()
            .ca()
            .build()
            .expect("an extension");
        builder.append_extension(extension).expect("an extension");
    } else {
        let context = builder.x509v3_context(None, None);
        let names = SubjectAlternativeName::new()
            .dns(name)
            .build(&context)
            .expect("an extension");
        builder.append_extension(names).expect("an extension");
    }
    let signer = issuer.map_or(&key, |issuer| &issuer.key);
    builder
        .sign(signer, MessageDigest::sha256())
        .expect("a signature");
    Issued {
        certificate: builder.build(),
        key,
    }
}
