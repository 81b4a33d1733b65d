// Sockets as TVM's RPC and tracker use them: a magic number, then texts with their length before them.
#pragma once
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace tvmstack {

constexpr int32_t kRpcMagic = 0xFF271, kTrackerMagic = 0x2F271, kMismatch = kRpcMagic + 2;
// No handshake or tracker message of an honest peer is longer.
constexpr int32_t kLongestText = 1 << 20;

inline bool SendAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    size -= sent;
  }
  return true;
}

inline bool ReceiveAll(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    ssize_t got = recv(fd, at, size, 0);
    if (got <= 0) return false;
    at += got;
    size -= got;
  }
  return true;
}

inline bool SendNumber(int fd, int32_t number) { return SendAll(fd, &number, sizeof number); }

inline bool SendText(int fd, const std::string& text) {
  return SendNumber(fd, static_cast<int32_t>(text.size())) && SendAll(fd, text.data(), text.size());
}

inline bool ReceiveText(int fd, std::string* text) {
  int32_t size;
  if (!ReceiveAll(fd, &size, sizeof size) || size < 0 || size > kLongestText) return false;
  text->resize(size);
  return ReceiveAll(fd, &(*text)[0], size);
}

// A peer that stalls in the middle of a handshake must not hold the server.
inline void LimitWaits(int fd, int seconds) {
  timeval limit{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// A client whose machine or line is gone says no goodbye: ask every ten seconds once it has been silent for thirty.
inline void NoticeLoss(int fd) {
  int on = 1, idle = 30, pause = 10, tries = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause, sizeof pause);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

// A connected socket, or -1.
inline int Connect(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) return -1;
  int fd = -1;
  for (addrinfo* one = found; one && fd < 0; one = one->ai_next) {
    fd = socket(one->ai_family, one->ai_socktype, 0);
    if (fd >= 0 && connect(fd, one->ai_addr, one->ai_addrlen)) {
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

// A listening socket on the first free port from *port up to `last`, or -1; *port says which.
inline int Listen(const std::string& host, int* port, int last) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (inet_pton(AF_INET, host.c_str(), &at.sin_addr) != 1) return -1;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  for (; *port <= last; ++*port) {
    at.sin_port = htons(static_cast<uint16_t>(*port));
    if (!bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) && !listen(fd, 4)) return fd;
  }
  close(fd);
  return -1;
}

}  // namespace tvmstack
