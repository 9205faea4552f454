<?php
header('Content-Type: text/plain');
if (isset($_GET['status'])) { http_response_code((int) $_GET['status']); }
if (isset($_GET['to'])) { header('Location: ' . $_GET['to'], true, 301); }
if (isset($_GET['cookie'])) { setcookie('session', '1', 0, '/'); }
foreach (['REQUEST_METHOD', 'REQUEST_URI', 'QUERY_STRING', 'SCRIPT_NAME', 'REMOTE_ADDR', 'CONTENT_TYPE'] as $name) {
    echo $name, '=', $_SERVER[$name] ?? '', "\n";
}
echo file_get_contents('php://input'), "\n", json_encode($_COOKIE), "\n";
