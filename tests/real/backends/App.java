// The application of the table of requests in a Tomcat that serves AJP only. Arguments: the directory
// and the secret. It prints its port; `java App.java` compiles and runs it.

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;

public class App extends HttpServlet {
    private static final byte[] PIECE = "0123456789abcdef".repeat(4096).getBytes();
    private final Path folder;

    App(Path folder) {
        this.folder = folder;
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        Connector ajp = new Connector("AJP/1.3");
        ajp.setPort(0);
        ajp.setProperty("address", "127.0.0.1");
        ajp.setProperty("secret", arguments[1]);
        ajp.setProperty("tomcatAuthentication", "false");
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(folder.toString());
        tomcat.setConnector(ajp);
        var context = tomcat.addContext("", folder.toString());
        Tomcat.addServlet(context, "app", new App(folder)).setAsyncSupported(true);
        context.addServletMappingDecoded("/*", "app");
        tomcat.start();
        System.out.println("ajp on port " + ajp.getLocalPort());
        tomcat.getServer().await();
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response)
            throws IOException {
        String path = request.getPathInfo();
        String[] words = path.substring(1).split("/");
        response.setContentType("text/plain");
        OutputStream out = response.getOutputStream();
        switch (words[0]) {
            case "status" -> {
                response.setStatus(Integer.parseInt(words[1]));
                response.setHeader("X-Status", words[1]);
                if (!words[1].equals("204") && !words[1].equals("304")) {
                    write(out, "why");
                }
            }
            case "big" -> {
                long left = Long.parseLong(words[1]);
                response.setContentLengthLong(left);
                for (; left > 0 && !request.getMethod().equals("HEAD"); left -= PIECE.length) {
                    out.write(PIECE, 0, (int) Math.min(left, PIECE.length));
                }
            }
            case "chunks" -> {
                write(out, "one");
                response.flushBuffer();
                write(out, "two".repeat(5000));
                write(out, "three");
            }
            case "gate" -> {
                write(out, "first");
                response.flushBuffer();
                while (!Files.exists(folder.resolve(words[1]))) {
                    pause();
                }
                write(out, "last");
            }
            case "fields" -> {
                response.addHeader("Set-Cookie", "a=1; Path=/");
                response.addHeader("Set-Cookie", "b=2; Path=/");
                for (String name : new String[] {"Host", "X-Forwarded-For", "X-Odd"}) {
                    String variable = "HTTP_" + name.toUpperCase().replace('-', '_');
                    write(out, variable + "=" + or(request.getHeader(name)) + "\n");
                }
                write(out, "QUERY_STRING=" + or(request.getQueryString()) + "\n");
                write(out, "HTTP_COOKIE=" + or(request.getHeader("Cookie")) + "\n");
                write(out, "PATH=" + path);
            }
            default -> write(out, request.getMethod() + " " + path + " " + digest(request));
        }
    }

    private static String digest(HttpServletRequest request) throws IOException {
        try {
            MessageDigest md5 = MessageDigest.getInstance("MD5");
            InputStream input = request.getInputStream();
            byte[] buffer = new byte[65536];
            long length = 0;
            for (int count = input.read(buffer); count >= 0; count = input.read(buffer)) {
                md5.update(buffer, 0, count);
                length += count;
            }
            return length + " " + HexFormat.of().formatHex(md5.digest());
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IOException(e);
        }
    }

    private static void pause() throws IOException {
        try {
            Thread.sleep(5);
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
    }

    private static String or(String value) {
        return value == null ? "" : value;
    }

    private static void write(OutputStream out, String text) throws IOException {
        out.write(text.getBytes(StandardCharsets.UTF_8));
    }
}
