<?php
// The application of the table of requests in PHP: one front controller for every path, and a form
// that uploads a file.

$method = $_SERVER['REQUEST_METHOD'];
$path = rawurldecode(parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH));
$words = explode('/', trim($path, '/'));
header('Content-Type: text/plain');

switch ($words[0]) {
    case 'status':
        http_response_code((int) $words[1]);
        header('X-Status: ' . $words[1]);
        if (!in_array($words[1], ['204', '304'], true)) {
            echo 'why';
        }
        break;
    case 'big':
        header('Content-Length: ' . $words[1]);
        $piece = str_repeat('0123456789abcdef', 4096);
        for ($left = (int) $words[1]; $left > 0 && $method !== 'HEAD'; $left -= strlen($piece)) {
            echo $left < strlen($piece) ? substr($piece, 0, $left) : $piece;
        }
        break;
    case 'chunks':
        echo 'one';
        flush();
        echo str_repeat('two', 5000), 'three';
        break;
    case 'gate':
        echo 'first';
        flush();
        $gate = getenv('FOLDER') . '/' . $words[1];
        while (!file_exists($gate)) {
            usleep(5000);
            clearstatcache();
        }
        echo 'last';
        break;
    case 'fields':
        header('Set-Cookie: a=1; Path=/', false);
        header('Set-Cookie: b=2; Path=/', false);
        foreach (['HTTP_HOST', 'HTTP_X_FORWARDED_FOR', 'HTTP_X_ODD', 'QUERY_STRING', 'HTTP_COOKIE'] as $name) {
            echo $name, '=', $_SERVER[$name] ?? '', "\n";
        }
        echo 'PATH=', $path;
        break;
    case 'server':
        $names = [
            'SCRIPT_NAME', 'SCRIPT_FILENAME', 'DOCUMENT_ROOT', 'SERVER_PROTOCOL', 'GATEWAY_INTERFACE',
            'REMOTE_ADDR', 'REQUEST_SCHEME', 'HTTPS', 'HTTP_PROXY', 'PHP_SELF',
        ];
        foreach ($names as $name) {
            echo $name, '=', $_SERVER[$name] ?? '(none)', "\n";
        }
        break;
    case 'upload':
        if ($method === 'GET') {
            header('Content-Type: text/html');
            echo '<form method="post" enctype="multipart/form-data"><input name="title">';
            echo '<input type="file" name="file"><button>Upload</button></form>';
            break;
        }
        $file = $_FILES['file'];
        $sum = $file['error'] ? 'error ' . $file['error'] : md5_file($file['tmp_name']);
        echo $_POST['title'], ' ', $file['name'], ' ', $file['size'], ' ', $sum;
        break;
    default:
        $input = fopen('php://input', 'rb');
        $md5 = hash_init('md5');
        $length = hash_update_stream($md5, $input);
        echo $method, ' ', $path, ' ', $length, ' ', hash_final($md5);
}
