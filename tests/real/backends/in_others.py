"""Back ends in other languages: php-fpm (FastCGI), Tomcat (AJP), and Redis for TCP mode."""

import json
import os
import shutil

from backends import HERE, Backend, need

POOL = """\
[global]
error_log = /dev/stderr
daemonize = no
[www]
listen = {socket}
pm = static
pm.max_children = 4
clear_env = no
catch_workers_output = yes
php_admin_value[post_max_size] = 256M
php_admin_value[upload_max_filesize] = 256M
php_admin_value[memory_limit] = 256M
php_admin_value[output_buffering] = 0
php_admin_value[upload_tmp_dir] = {folder}
php_admin_value[sys_temp_dir] = {folder}
"""


class PhpFpm(Backend):
    """php-fpm with a site that has one front controller, like WordPress."""

    protocol = "fastcgi"

    def start(self):
        binary = need("php-fpm", "/usr/sbin/php-fpm*", "php-fpm")
        root = self.folder / "site"
        root.mkdir()
        shutil.copy(HERE / "index.php", root)
        (root / "other.php").write_text("<?php echo 'other ', $_SERVER['PATH_INFO'] ?? '(none)';")
        pool = POOL.format(socket=self.socket(), folder=self.folder)
        (self.folder / "fpm.conf").write_text(pool)
        self.settings = f'root = {json.dumps(str(root))}\nindex = "index.php"\nmax_active = 4'
        as_root = ["--allow-to-run-as-root"] if os.geteuid() == 0 else []
        command = (binary, "--nodaemonize", *as_root, "--fpm-config", self.folder / "fpm.conf")
        self.run(*command, ready="ready to handle connections")


class Tomcat(Backend):
    """Tomcat's AJP connector, which requires a secret."""

    protocol = "ajp"
    secret = "an agreed secret"
    settings = f"secret = {json.dumps(secret)}"

    def start(self):
        need("tomcat10-common", "/usr/share/tomcat10/lib/catalina.jar")
        need("default-jdk-headless", "javac")
        home = "/usr/share/tomcat10"
        jars = f"{home}/lib/*:{home}/bin/tomcat-juli.jar"
        java = need("default-jdk-headless", "java")
        found = self.run(
            *(java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars, HERE / "App.java"),
            *(self.folder, self.secret),
            ready=r"^ajp on port (\d+)",
        )
        self.servers = [f"127.0.0.1:{found[1]}"]


class Redis(Backend):
    """Redis on a Unix socket, for TCP mode."""

    def start(self):
        self.run(
            *(need("redis-server", "redis-server"), "--port", "0", "--save", ""),
            *("--unixsocket", self.socket(), "--daemonize", "no", "--dir", self.folder),
            ready="eady to accept connections",
        )

    def config(self, route=""):
        return (
            f"[upstreams.b]\nservers = {json.dumps(self.servers)}\n\n"
            '[[tcp]]\nlisten = "127.0.0.1:0"\nupstream = "b"\n'
        )
