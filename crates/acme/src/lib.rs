//! Certificates from certificate authorities by ACME (RFC 8555): ordered, stored, renewed.
